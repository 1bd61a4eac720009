-- Counts after the benchmark of keys: claims, tokens spent, works done, and locks that
-- are held.
select (select count(*) from claim_keys where uses = 1),
    (select count(*) from token_submit_tokens where state = 'spent'),
    (select count(*) from work_records where state = 'done'), (select count(*) from lock_locks where state = 'held')
