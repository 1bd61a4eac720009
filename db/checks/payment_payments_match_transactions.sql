-- A succeeded payment has paid its order. The money of its transaction is on the payee's account, and is the payment's
-- amount, unless a person has accepted another amount.
select p.tenant_id, p.out_trade_no, p.order_no, p.gateway, p.transaction_id,
    case when x.transaction_id is null then 'there is no such transaction'
        when x.out_trade_no <> p.out_trade_no then 'its transaction is of another payment'
        when not m.paid then 'its order was not paid by it' end as problem,
    x.account, p.payee as account_expected, x.asset, case when f.accepted then x.asset else p.asset end
        as asset_expected, x.amount, case when f.accepted then x.amount else p.amount end as amount_expected
from payment_payments p
cross join lateral (
    select y.state from machine_instances y
    where y.tenant_id = p.tenant_id and y.machine = 'payment' and y.key = p.out_trade_no offset 0
) i
left join lateral (
    select y.* from payment_transactions y
    where y.tenant_id = p.tenant_id and y.gateway = p.gateway and y.transaction_id = p.transaction_id offset 0
) x on true
cross join lateral (
    select exists (
        select from payment_flags y
        where y.tenant_id = p.tenant_id and y.out_trade_no = p.out_trade_no and y.out_trade_no <> ''
            and y.gateway = p.gateway and y.transaction_id = p.transaction_id and y.resolution = 'accept'
    ) as accepted
) f
cross join lateral (
    select exists (
        select from order_orders o
        join machine_history h on h.tenant_id = o.tenant_id and h.instance_id = o.order_id
        where o.tenant_id = p.tenant_id and o.order_no = p.order_no and h.cause = p.out_trade_no
    ) as paid
) m
where i.state = 'succeeded' and (
    x.transaction_id is null or x.out_trade_no <> p.out_trade_no or not m.paid or x.account is distinct from p.payee
    or not f.accepted and (x.asset, x.scale, x.amount) is distinct from (p.asset, p.scale, p.amount)
)
