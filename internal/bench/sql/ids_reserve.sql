-- 1,000 batch numbers, whose 16,384,000 row ids no other process gets: the first of them.
select nextval('public.commit_batch_seq')
