-- An order that reserves has the reservation of every line. If its state confirms or cancels the parts of orders, none
-- of its parts is open: no reservation, no hold, and no coupon that it has locked.
select o.tenant_id, o.order_no, i.state, r.line, r.reservation_state,
    case when r.missing then 'it has no such reservation' when r.open then 'the reservation is open'
        when h.open then 'the hold is open' else 'the coupon is locked' end as problem
from order_orders o
cross join lateral (
    select x.state, x.version from machine_instances x
    where x.tenant_id = o.tenant_id and x.machine = o.machine and x.key = o.order_no offset 0
) i
cross join lateral (
    select exists (
        select from machine_definitions d
        cross join lateral jsonb_array_elements(d.definition -> 'states') s
        where d.tenant_id = o.tenant_id and d.machine = o.machine and d.version = i.version
            and s ->> 'name' = i.state and s ? 'order_parts'
    ) as ended
) e
left join lateral (
    select l.n as line, v.state as reservation_state, v.state is null as missing,
        coalesce(v.state = 'reserved', false) as open
    from jsonb_array_elements(o.lines) with ordinality l (line, n)
    left join lateral (
        select x.state from stock_reservations x
        where x.tenant_id = o.tenant_id and x.item = l.line ->> 'item' and x.reservation_no = o.order_no || '/' || l.n
        offset 0
    ) v on true
    where o.reserve and (v.state is null or e.ended and v.state = 'reserved')
) r on true
left join lateral (
    select true as open from ledger_holds x
    where e.ended and o.balance_amount < o.amount and x.tenant_id = o.tenant_id and x.biz_no = o.order_no || '/hold'
        and x.state = 'held'
    offset 0
) h on true
left join lateral (
    select true as locked from machine_instances x
    where e.ended and x.tenant_id = o.tenant_id and x.machine = 'coupon' and x.key = o.coupon and x.state = 'locked'
        and x.cause = o.order_no
    offset 0
) c on true
where r.line is not null or h.open or c.locked
