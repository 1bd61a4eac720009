-- The amount that the gateway gave back for a refund, according to its last notice, is the amount that the ledger
-- booked for it, plus its flags unknown_refund, less its flags refund_returned; withdrawn flags do not count. Only a
-- succeeded refund counts as booked.
select r.tenant_id, r.refund_no, i.state, r.amount, r.booked, r.given, s.given as given_expected
from payment_refunds r
cross join lateral (
    select y.state from machine_instances y
    where y.tenant_id = r.tenant_id and y.machine = 'refund' and y.key = r.refund_no offset 0
) i
cross join lateral (
    select case i.state when 'succeeded' then r.booked else 0 end
        + coalesce(sum(case f.kind when 'unknown_refund' then f.amount else -f.amount end)
            filter (where f.resolution is distinct from 'withdrawn'), 0) as given
    from payment_flags f
    where f.tenant_id = r.tenant_id and f.out_trade_no = r.out_trade_no and f.out_trade_no <> ''
        and f.about_refund = r.refund_no
) s
where r.given <> s.given
