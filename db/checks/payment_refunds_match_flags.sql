-- What a gateway gave back for a refund, as it said last, is what the ledger has given back for it, plus its flags of
-- kind unknown_refund, and less those of kind refund_returned, but for withdrawn ones. Only for a refund that has
-- succeeded has the ledger given back something.
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
