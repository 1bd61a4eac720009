-- Every hold belongs to an account of its tenant, and has the time of its batch; or an earlier one, if the batch's
-- time was that of an account ahead of the clock.
select h.tenant_id, h.hold_id, h.biz_no, h.account_id,
    case when a.account_id is null then 'there is no such account'
        when b.batch_id is null then 'no batch made it' end as problem,
    h.created_at, b.committed_at as created_at_expected
from ledger_holds h
left join ledger_accounts a on a.tenant_id = h.tenant_id and a.account_id = h.account_id
left join commit_batches b on b.batch_id = h.hold_id >> 14 and b.commands > 0
where a.account_id is null or b.batch_id is null or b.committed_at <> h.created_at
    and not (h.created_at < b.committed_at and exists (
        select from generate_series((b.batch_id >> 16) + 1, (b.batch_id >> 16) - 100, -1) g -- 6.5 million batches
        cross join lateral (
            select from commit_batches t
            where t.batch_id >> 16 = g and t.committed_at = b.committed_at and t.batch_id <> b.batch_id
                and t.commands > 0
            order by t.committed_at
            limit 1
        ) t
    ))
