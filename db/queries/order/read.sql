-- Reads of orders, beside the engine: one tenant, one snapshot, planned with their actual values. The state is that of
-- the instance at the present time of the database.

-- name: OrderGet :one
select o.order_no, o.order_id, o.machine, o.subject, o.asset, o.scale, o.amount, o.lines, o.payee, o.pay_within_ms,
    o.life_ms, o.reserve, o.balance_account, o.balance_amount, o.purchase_parts, o.purchase_life_ms, o.metadata,
    o.coupon, o.sale, o.sale_unit, o.once, o.principal, o.request_id, o.created_at, c.state, c.revision, c.cause, c.due,
    i.timer_at, i.timer_to, c.changed_at
from order_orders o
join machine_instances i on i.tenant_id = o.tenant_id and i.machine = o.machine and i.key = o.order_no
cross join lateral (
    select case when d.due then i.timer_to else i.state end::text as state,
        (i.revision + d.due::integer)::bigint as revision,
        case when d.due then 'timer' else i.cause end::text as cause,
        case when d.due then i.timer_at else i.changed_at end::timestamptz as changed_at, d.due
    from (select coalesce(i.timer_at <= now(), false)::boolean as due) d
) c
where o.tenant_id = @tenant_id::integer and o.order_no = @order_no::text;

-- name: OrderPage :many
-- The newest orders of a period, before a time and an id.
select o.order_no, o.order_id, o.machine, o.subject, o.asset, o.scale, o.amount, o.lines, o.payee, o.pay_within_ms,
    o.life_ms, o.reserve, o.balance_account, o.balance_amount, o.purchase_parts, o.purchase_life_ms, o.metadata,
    o.coupon, o.sale, o.sale_unit, o.once, o.principal, o.request_id, o.created_at, c.state, c.revision, c.cause, c.due,
    i.timer_at, i.timer_to, c.changed_at
from (
    select x.* from order_orders x
    where x.tenant_id = @tenant_id::integer and x.order_id > 0
        and (x.created_at, x.order_id) < (@before::timestamptz, @before_id::bigint)
        and x.created_at >= @start_at::timestamptz and x.created_at < @end_at::timestamptz
        and (@machine::text = '' or x.machine = @machine::text)
    order by x.created_at desc, x.order_id desc
    limit @count::integer
) o
cross join lateral (
    select y.* from machine_instances y
    where y.tenant_id = o.tenant_id and y.machine = o.machine and y.key = o.order_no offset 0
) i
cross join lateral (
    select case when d.due then i.timer_to else i.state end::text as state,
        (i.revision + d.due::integer)::bigint as revision,
        case when d.due then 'timer' else i.cause end::text as cause,
        case when d.due then i.timer_at else i.changed_at end::timestamptz as changed_at, d.due
    from (select coalesce(i.timer_at <= now(), false)::boolean as due) d
) c
order by o.created_at desc, o.order_id desc;

-- name: OrderPageOfSubject :many
-- OrderPage for a subject, in one state or in any.
select o.order_no, o.order_id, o.machine, o.subject, o.asset, o.scale, o.amount, o.lines, o.payee, o.pay_within_ms,
    o.life_ms, o.reserve, o.balance_account, o.balance_amount, o.purchase_parts, o.purchase_life_ms, o.metadata,
    o.coupon, o.sale, o.sale_unit, o.once, o.principal, o.request_id, o.created_at, c.state, c.revision, c.cause, c.due,
    i.timer_at, i.timer_to, c.changed_at
from order_orders o
cross join lateral (
    select y.* from machine_instances y
    where y.tenant_id = o.tenant_id and y.machine = o.machine and y.key = o.order_no offset 0
) i
cross join lateral (
    select case when d.due then i.timer_to else i.state end::text as state,
        (i.revision + d.due::integer)::bigint as revision,
        case when d.due then 'timer' else i.cause end::text as cause,
        case when d.due then i.timer_at else i.changed_at end::timestamptz as changed_at, d.due
    from (select coalesce(i.timer_at <= now(), false)::boolean as due) d
) c
where o.tenant_id = @tenant_id::integer and o.subject = @subject::text and o.subject <> ''
    and (o.created_at, o.order_id) < (@before::timestamptz, @before_id::bigint)
    and o.created_at >= @start_at::timestamptz and o.created_at < @end_at::timestamptz
    and (@machine::text = '' or o.machine = @machine::text)
    and (@state::text = '' or c.state = @state::text)
order by o.created_at desc, o.order_id desc
limit @count::integer;

-- name: OrderPageOfState :many
-- The newest orders in a state, before an id: those recorded in it whose timer has not fired, and those whose timer has
-- moved them there, which the scheduler has not recorded yet. Instances without an order are skipped.
select o.order_no, o.order_id, o.machine, o.subject, o.asset, o.scale, o.amount, o.lines, o.payee, o.pay_within_ms,
    o.life_ms, o.reserve, o.balance_account, o.balance_amount, o.purchase_parts, o.purchase_life_ms, o.metadata,
    o.coupon, o.sale, o.sale_unit, o.once, o.principal, o.request_id, o.created_at, c.state, c.revision, c.cause, c.due,
    i.timer_at, i.timer_to, c.changed_at
from (
    (
        select r.* from machine_instances r
        where r.tenant_id = @tenant_id::integer and r.machine = @machine::text and r.state = @state::text
            and r.state <> '' and r.instance_id < @before_id::bigint and (r.timer_at is null or r.timer_at > now())
            and r.created_at >= @start_at::timestamptz and r.created_at < @end_at::timestamptz
            and exists (
                select from order_orders z
                where z.tenant_id = r.tenant_id and z.order_no = r.key and z.machine = r.machine offset 0
            )
        order by r.instance_id desc
        limit @count::integer
    )
    union all
    (
        select d.* from (
            select x.* from machine_instances x
            where x.tenant_id = @tenant_id::integer and x.machine = @machine::text and x.timer_at <= now()
            offset 0
        ) d
        where d.timer_to = @state::text and d.instance_id < @before_id::bigint
            and d.created_at >= @start_at::timestamptz and d.created_at < @end_at::timestamptz
            and exists (
                select from order_orders z
                where z.tenant_id = d.tenant_id and z.order_no = d.key and z.machine = d.machine offset 0
            )
        order by d.instance_id desc
        limit @count::integer
    )
) i
cross join lateral (
    select l.* from order_orders l
    where l.tenant_id = i.tenant_id and l.order_no = i.key and l.machine = i.machine offset 0
) o
cross join lateral (
    select case when d.due then i.timer_to else i.state end::text as state,
        (i.revision + d.due::integer)::bigint as revision,
        case when d.due then 'timer' else i.cause end::text as cause,
        case when d.due then i.timer_at else i.changed_at end::timestamptz as changed_at, d.due
    from (select coalesce(i.timer_at <= now(), false)::boolean as due) d
) c
order by i.instance_id desc
limit @count::integer;
