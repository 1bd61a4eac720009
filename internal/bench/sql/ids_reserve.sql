-- 1,000 batch numbers, whose 16,384,000 row ids nobody else gets: the first of them.
select nextval('public.commit_batch_seq')
