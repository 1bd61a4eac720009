-- A refund of posted money has a hold of its amount on the account of the money. The hold of a succeeded refund is
-- captured; that of a failed one is not open. Exception: a succeeded refund with booked = 0, whose hold a caller had
-- ended before the capture.
select r.tenant_id, r.refund_no, n.biz_no, i.state,
    case when h.hold_id is null then 'there is no such hold'
        when i.state = 'succeeded' and t.transfer_id is null then 'no transfer gave all of it back' end as problem,
    h.code as account, r.account as account_expected, h.state as hold_state, s.wanted as hold_state_expected,
    h.amount, r.amount as amount_expected
from payment_refunds r
cross join lateral (select 'refund/' || r.refund_no as biz_no) n
cross join lateral (
    select y.state from machine_instances y
    where y.tenant_id = r.tenant_id and y.machine = 'refund' and y.key = r.refund_no offset 0
) i
left join lateral (
    select y.hold_id, y.state, a.code, a.asset,
        trim_scale(y.amount * 10::numeric ^ (r.scale - a.scale)::numeric) as amount
    from ledger_holds y join ledger_accounts a on a.tenant_id = y.tenant_id and a.account_id = y.account_id
    where y.tenant_id = r.tenant_id and y.biz_no = n.biz_no
    offset 0
) h on true
cross join lateral (
    select case when i.state = 'succeeded' then 'captured' when i.state = 'failed' and h.state = 'held' then 'released'
        else h.state end as wanted
) s
left join lateral (
    select y.transfer_id from ledger_transfers y
    join ledger_entries e on e.tenant_id = y.tenant_id and e.transfer_id = y.transfer_id
    join ledger_accounts a on a.tenant_id = e.tenant_id and a.account_id = e.account_id
    where y.tenant_id = r.tenant_id and y.biz_no = n.biz_no || '/paid' and y.hold_id = h.hold_id
        and e.amount > 0 and e.amount * 10::numeric ^ r.scale::numeric = r.amount * 10::numeric ^ a.scale::numeric
    offset 0
) t on true
where r.account is not null and not (i.state = 'succeeded' and r.booked = 0) and (
    (h.code, h.asset, h.state, h.amount) is distinct from (r.account, r.asset, s.wanted, r.amount)
    or i.state = 'succeeded' and t.transfer_id is null
)
