-- Statements on coupons, in batches. Arrays have the same length; n is a position in them, from 1. They have no nulls.
-- Coupons never change, so no statement locks them.

-- name: CouponLookup :many
select u.n::integer as n, c.coupon_id, c.campaign, c.expires_at, c.metadata, c.principal, c.request_id, c.created_at
from (
    select generate_subscripts(@codes::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@codes::text[]) as code
) u
cross join lateral (
    select l.* from coupon_coupons l where l.tenant_id = u.tenant_id and l.code = u.code offset 0
) c;

-- name: CouponInsert :exec
-- Inserts coupons in the order of the arrays, which callers sort.
insert into coupon_coupons (tenant_id, code, coupon_id, campaign, expires_at, metadata, principal, request_id,
    created_at)
select u.tenant_id, u.code, u.coupon_id, u.campaign, u.expires_at, u.metadata, u.principal, u.request_id,
    @now::timestamptz
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@codes::text[]) as code,
        unnest(@coupon_ids::bigint[]) as coupon_id, unnest(@campaigns::text[]) as campaign,
        unnest(@expires_at::timestamptz[]) as expires_at, unnest(@metadata::jsonb[]) as metadata,
        unnest(@principals::text[]) as principal, unnest(@request_ids::text[]) as request_id
) u;
