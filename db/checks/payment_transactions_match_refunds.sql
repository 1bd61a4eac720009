-- The column refunding of a transaction is the sum of its pending refunds, refunded the sum of its succeeded ones.
select x.tenant_id, x.gateway, x.transaction_id, x.refunding, s.refunding as refunding_expected, x.refunded,
    s.refunded as refunded_expected
from payment_transactions x
cross join lateral (
    select coalesce(sum(r.amount) filter (where i.state in ('requested', 'submitted', 'abnormal')), 0) as refunding,
        coalesce(sum(r.amount) filter (where i.state = 'succeeded'), 0) as refunded
    from payment_refunds r
    join machine_instances i on i.tenant_id = r.tenant_id and i.machine = 'refund' and i.key = r.refund_no
    where r.tenant_id = x.tenant_id and r.out_trade_no = x.out_trade_no and r.out_trade_no <> ''
        and r.gateway = x.gateway and r.transaction_id = x.transaction_id
) s
where (x.refunding, x.refunded) is distinct from (s.refunding, s.refunded)
