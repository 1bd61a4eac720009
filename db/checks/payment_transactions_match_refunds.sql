-- What is given back of a transaction, and what was, are the sums of its refunds that are not decided, and of those
-- that have succeeded. What was given back beyond them is what gateways gave back more than a refund has counted, and
-- what no refund asked for: what flags in the same currency say, rounded up. A flag without a transaction was raised
-- before its payment had any, and counts for all that came.
select x.tenant_id, x.gateway, x.transaction_id, x.refunding, s.refunding as refunding_expected, x.refunded,
    s.refunded as refunded_expected, x.extra_refunded, e.extra_refunded as extra_refunded_expected
from payment_transactions x
cross join lateral (
    select coalesce(sum(r.amount) filter (where i.state in ('asked', 'submitted', 'abnormal')), 0) as refunding,
        coalesce(sum(r.amount) filter (where i.state = 'succeeded'), 0) as refunded,
        coalesce(sum(greatest(r.given - case i.state when 'succeeded' then r.amount else 0 end, 0)), 0) as extra
    from payment_refunds r
    join machine_instances i on i.tenant_id = r.tenant_id and i.machine = 'refund' and i.key = r.refund_no
    where r.tenant_id = x.tenant_id and r.out_trade_no = x.out_trade_no and r.out_trade_no <> ''
        and r.gateway = x.gateway and r.transaction_id = x.transaction_id
) s
cross join lateral (
    select least(10::numeric ^ 38 - 1, s.extra + coalesce(sum(ceil(case when f.scale > x.scale
            then f.amount / 10::numeric ^ (f.scale - x.scale)::numeric
            else f.amount * 10::numeric ^ (x.scale - f.scale)::numeric end)), 0)) as extra_refunded
    from payment_flags f
    where f.tenant_id = x.tenant_id and f.gateway = x.gateway and (f.transaction_id = x.transaction_id
            or f.transaction_id = '' and f.out_trade_no = x.out_trade_no)
        and f.kind = 'unknown_refund' and f.about_refund is null and f.currency in ('', x.currency)
) e
where (x.refunding, x.refunded, x.extra_refunded) is distinct from (s.refunding, s.refunded, e.extra_refunded)
