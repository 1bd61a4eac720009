-- Every refund has an instance of the machine "refund" with its number and its id, and a transaction of its payment in
-- the same currency. Its time is that of its batch, or earlier if an account of the batch was ahead of the clock.
select r.tenant_id, r.refund_no, r.refund_id, r.out_trade_no,
    case when i.instance_id is null then 'it has no instance'
        when x.transaction_id is null then 'there is no such transaction'
        when b.batch_id is null then 'no batch made it' end as problem,
    r.currency, x.currency as currency_expected, r.asset, x.asset as asset_expected, r.scale,
    x.scale as scale_expected, r.created_at, b.recorded_at as created_at_expected
from payment_refunds r
left join lateral (
    select y.instance_id from machine_instances y
    where y.tenant_id = r.tenant_id and y.machine = 'refund' and y.key = r.refund_no and y.instance_id = r.refund_id
    offset 0
) i on true
left join lateral (
    select y.* from payment_transactions y
    where y.tenant_id = r.tenant_id and y.gateway = r.gateway and y.transaction_id = r.transaction_id
        and y.out_trade_no = r.out_trade_no
    offset 0
) x on true
left join commit_batches b on b.batch_id = r.refund_id >> 14 and b.commands > 0
where i.instance_id is null or x.transaction_id is null or b.batch_id is null
    or (r.currency, r.asset, r.scale) is distinct from (x.currency, x.asset, x.scale)
    or b.recorded_at <> r.created_at
    and not (r.created_at < b.recorded_at and commit_time_taken(b.batch_id, b.recorded_at))
