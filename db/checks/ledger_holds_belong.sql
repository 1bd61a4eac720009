-- Every hold belongs to an account of its tenant. Its time is that of its batch, or earlier if an account of the batch
-- was ahead of the clock.
select h.tenant_id, h.hold_id, h.biz_no, h.account_id,
    case when a.account_id is null then 'there is no such account'
        when b.batch_id is null then 'no batch made it' end as problem,
    h.created_at, b.recorded_at as created_at_expected
from ledger_holds h
left join ledger_accounts a on a.tenant_id = h.tenant_id and a.account_id = h.account_id
left join commit_batches b on b.batch_id = h.hold_id >> 14 and b.commands > 0
where a.account_id is null or b.batch_id is null or b.recorded_at <> h.created_at
    and not (h.created_at < b.recorded_at and commit_time_taken(b.batch_id, b.recorded_at))
