-- Reads of coupons, beside the engine: one tenant, one snapshot, planned with their actual values. The state is that of
-- the instance at the present time of the database.

-- name: CouponGet :one
select c.code, c.coupon_id, c.campaign, c.expires_at, c.metadata, c.principal, c.request_id, c.created_at,
    case when d.due then i.timer_to else i.state end::text as state, i.owner,
    case when d.due then 'timer' else i.cause end::text as cause,
    case when d.due then i.timer_at else i.changed_at end::timestamptz as changed_at
from coupon_coupons c
join machine_instances i on i.tenant_id = c.tenant_id and i.machine = 'coupon' and i.key = c.code
cross join lateral (select coalesce(i.timer_at <= now(), false)::boolean as due) d
where c.tenant_id = @tenant_id::integer and c.code = @code::text;

-- name: CouponPage :many
-- The newest coupons of a campaign before an id, in one state or in any, and of one owner or of all.
select c.code, c.coupon_id, c.campaign, c.expires_at, c.metadata, c.principal, c.request_id, c.created_at,
    s.state, i.owner, s.cause, s.changed_at
from coupon_coupons c
cross join lateral (
    select y.* from machine_instances y
    where y.tenant_id = c.tenant_id and y.machine = 'coupon' and y.key = c.code offset 0
) i
cross join lateral (
    select case when d.due then i.timer_to else i.state end::text as state,
        case when d.due then 'timer' else i.cause end::text as cause,
        case when d.due then i.timer_at else i.changed_at end::timestamptz as changed_at
    from (select coalesce(i.timer_at <= now(), false)::boolean as due) d
) s
where c.tenant_id = @tenant_id::integer and c.campaign = @campaign::text and c.campaign <> ''
    and c.coupon_id < @before_id::bigint
    and (@state::text = '' or s.state = @state::text)
order by c.coupon_id desc
limit @count::integer;

-- name: CouponPageOfOwner :many
-- CouponPage for an owner, of one campaign or of all.
select c.code, c.coupon_id, c.campaign, c.expires_at, c.metadata, c.principal, c.request_id, c.created_at,
    s.state, i.owner, s.cause, s.changed_at
from machine_instances i
cross join lateral (
    select l.* from coupon_coupons l where l.tenant_id = i.tenant_id and l.code = i.key offset 0
) c
cross join lateral (
    select case when d.due then i.timer_to else i.state end::text as state,
        case when d.due then 'timer' else i.cause end::text as cause,
        case when d.due then i.timer_at else i.changed_at end::timestamptz as changed_at
    from (select coalesce(i.timer_at <= now(), false)::boolean as due) d
) s
where i.tenant_id = @tenant_id::integer and i.machine = 'coupon' and i.owner = @owner::text
    and i.instance_id < @before_id::bigint and (@campaign::text = '' or c.campaign = @campaign::text)
    and (@state::text = '' or s.state = @state::text)
order by i.instance_id desc
limit @count::integer;
