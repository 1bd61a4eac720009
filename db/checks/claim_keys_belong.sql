-- Every claim has the time of its batch, or an earlier time if an account of the batch was ahead of the clock.
select c.tenant_id, c.scope, c.key, c.claim_id, case when b.batch_id is null then 'no batch made it' end as problem,
    c.claimed_at, b.recorded_at as claimed_at_expected
from claim_keys c
left join commit_batches b on b.batch_id = c.claim_id >> 14 and b.commands > 0
where b.batch_id is null or b.recorded_at <> c.claimed_at
    and not (c.claimed_at < b.recorded_at and commit_time_taken(b.batch_id, b.recorded_at))
