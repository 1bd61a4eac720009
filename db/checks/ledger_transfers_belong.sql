-- Every transfer has the time of its batch, and the transfer or hold that it refers to exists.
select t.tenant_id, t.transfer_id, t.biz_no,
    case when b.batch_id is null then 'no batch made it'
        when t.reverses_id is not null and r.transfer_id is null then 'there is no transfer that it reverses'
        when t.hold_id is not null and h.hold_id is null then 'there is no hold that it captured from' end as problem,
    t.recorded_at, b.recorded_at as recorded_at_expected, t.reverses_id, t.hold_id
from ledger_transfers t
left join commit_batches b on b.batch_id = t.transfer_id >> 14 and b.commands > 0
left join ledger_transfers r on r.tenant_id = t.tenant_id and r.transfer_id = t.reverses_id
left join ledger_holds h on h.tenant_id = t.tenant_id and h.hold_id = t.hold_id
where b.batch_id is null
    or b.recorded_at <> t.recorded_at
    or (t.reverses_id is not null and r.transfer_id is null)
    or (t.hold_id is not null and h.hold_id is null)
