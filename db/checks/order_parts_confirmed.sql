-- An order of which an account pays a part has a hold. If an order was ever in a state that confirms the parts of
-- orders, none of its reservations is cancelled or expired, its hold is neither released nor expired, and
-- balance_account has paid.
with confirming as materialized (
    select d.tenant_id, d.machine, d.version, s.value ->> 'name' as state
    from machine_definitions d cross join lateral jsonb_array_elements(d.definition -> 'states') s
    where s.value ->> 'order_parts' = 'confirm'
)
select o.tenant_id, o.order_no, p.number, p.problem, p.state, case when p.state is not null then p.wanted end
    as state_expected
from order_orders o
cross join lateral (
    select exists (
        select from machine_history h
        join confirming x on x.tenant_id = h.tenant_id and x.machine = h.machine and x.version = h.version
            and x.state = h.to_state
        where h.tenant_id = o.tenant_id and h.instance_id = o.order_id
    ) as confirmed
) e
cross join lateral (
    select r.reservation_no as number, r.state, 'sold' as wanted, null as problem
    from jsonb_array_elements(o.lines) with ordinality l (line, n)
    join stock_reservations r on r.tenant_id = o.tenant_id and r.item = l.line ->> 'item'
        and r.reservation_no = o.order_no || '/' || l.n
    where o.reserve and e.confirmed and r.state in ('cancelled', 'expired')
    union all
    select n.number, h.state, 'captured', case when h.state is null then 'there is no such hold' end
    from (select o.order_no || '/hold' as number) n
    left join ledger_holds h on h.tenant_id = o.tenant_id and h.biz_no = n.number
    where o.balance_amount < o.amount and (h.state is null or e.confirmed and h.state in ('released', 'expired'))
    union all
    select n.number, null, null, 'there is no such transfer'
    from (select o.order_no || '/pay' as number) n
    left join ledger_transfers f on f.tenant_id = o.tenant_id and f.biz_no = n.number
    where o.balance_amount is not null and e.confirmed and f.transfer_id is null
) p
