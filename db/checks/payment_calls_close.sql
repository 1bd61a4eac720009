-- The scheduled call of a payment is "close" (or "flag", for money that may be left after its end) once its order has
-- moved to a state that confirms or cancels the parts of orders: the order cannot be paid any more, or another payment
-- has paid it. Two kinds of moves do not count, because the order was opened again before the payment was created:
-- moves before the creation, and moves at the time of the creation that a move to another kind of state follows in the
-- same batch.
with ending as materialized (
    select d.tenant_id, d.machine, d.version, s.value ->> 'name' as state
    from machine_definitions d cross join lateral jsonb_array_elements(d.definition -> 'states') s
    where s.value ? 'order_parts'
)
select c.tenant_id, c.number, p.order_no, c.call, 'close' as call_expected
from payment_calls c
join payment_payments p on p.tenant_id = c.tenant_id and p.out_trade_no = c.number
where c.subject = 'payment' and c.call not in ('close', 'flag') and exists (
    select from order_orders o
    join machine_history h on h.tenant_id = o.tenant_id and h.instance_id = o.order_id
    join ending e on e.tenant_id = h.tenant_id and e.machine = h.machine and e.version = h.version
        and e.state = h.to_state
    where o.tenant_id = p.tenant_id and o.order_no = p.order_no and h.recorded_at >= p.created_at
        and not (h.recorded_at = p.created_at and exists (
            select from machine_history g
            where g.tenant_id = h.tenant_id and g.instance_id = h.instance_id and g.revision > h.revision
                and g.recorded_at = h.recorded_at and not exists (
                    select from ending f
                    where f.tenant_id = g.tenant_id and f.machine = g.machine and f.version = g.version
                        and f.state = g.to_state
                )
        ))
)
