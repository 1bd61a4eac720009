-- Every claim was made by a batch, at its time; or before it, if the batch's time was that of an account ahead of the
-- clock.
select c.tenant_id, c.scope, c.key, c.claim_id, case when b.batch_id is null then 'no batch made it' end as problem,
    c.claimed_at, b.committed_at as claimed_at_expected
from claim_keys c
left join commit_batches b on b.batch_id = c.claim_id >> 14 and b.commands > 0
where b.batch_id is null or b.committed_at <> c.claimed_at
    and not (c.claimed_at < b.committed_at and exists (
        select from generate_series((b.batch_id >> 16) + 1, (b.batch_id >> 16) - 100, -1) g -- 6.5 million batches
        cross join lateral (
            select from commit_batches t
            where t.batch_id >> 16 = g and t.committed_at = b.committed_at and t.batch_id <> b.batch_id
                and t.commands > 0
            order by t.committed_at
            limit 1
        ) t
    ))
