-- Every payment has an instance of the machine "payment" with its number and its id. Its amount is the amount of its
-- order less balance_amount. Its time is that of its batch; or earlier, if an account of the batch was ahead of the
-- clock; or later, if a notice of the gateway came before the payment was created.
select p.tenant_id, p.out_trade_no, p.payment_id, p.order_no,
    case when i.instance_id is null then 'it has no instance' when o.order_no is null then 'there is no such order'
        when b.batch_id is null then 'no batch made it' end as problem,
    p.asset, o.asset as asset_expected, p.scale, o.scale as scale_expected, p.amount, o.rest as amount_expected,
    p.payee, o.payee as payee_expected, p.created_at, b.recorded_at as created_at_expected
from payment_payments p
left join lateral (
    select x.instance_id from machine_instances x
    where x.tenant_id = p.tenant_id and x.machine = 'payment' and x.key = p.out_trade_no
        and x.instance_id = p.payment_id
    offset 0
) i on true
left join lateral (
    select x.order_no, x.asset, x.scale, x.amount - coalesce(x.balance_amount, 0) as rest,
        coalesce(x.payee, p.payee) as payee
    from order_orders x where x.tenant_id = p.tenant_id and x.order_no = p.order_no
    offset 0
) o on true
left join commit_batches b on b.batch_id = p.payment_id >> 14 and b.commands > 0
where i.instance_id is null or b.batch_id is null
    or (p.asset, p.scale, p.amount, p.payee) is distinct from (o.asset, o.scale, o.rest, o.payee)
    or b.recorded_at <> p.created_at
    and not (p.created_at > b.recorded_at and exists (
        select from machine_history h
        where h.tenant_id = p.tenant_id and h.instance_id = p.payment_id and h.to_state = 'unexpected'
    ))
    and not (p.created_at < b.recorded_at and commit_time_taken(b.batch_id, b.recorded_at))
