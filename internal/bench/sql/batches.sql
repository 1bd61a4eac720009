-- Number of batches after a given batch, and of their commands.
select count(*), coalesce(sum(commands), 0)::bigint from public.commit_batches where batch_id > $1
