-- Reserves 1,000 batch numbers, with their 16,384,000 row ids, and returns the first batch number.
select nextval('public.commit_batch_seq')
