-- Statements on sales. Arrays of batches have the same length; n is a position in them, from 1.

-- name: SaleLock :many
-- Locks sales in the order of the arrays, which callers sort by tenant and sale.
select u.n::integer as n, s.item, s.asset, s.amount, s.payee, s.pay_within_ms, s.machine, s.campaign, s.coupon_life_ms,
    s.metadata, s.per_buyer, s.once, s.opens_at, s.closes_at
from (
    select generate_subscripts(@sales::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@sales::text[]) as sale
) u
cross join lateral (
    select l.* from sale_sales l where l.tenant_id = u.tenant_id and l.sale = u.sale offset 0 for no key update
) s;

-- name: SaleLookup :many
-- Reads sales without locks: for grabs, the committed values are enough.
select u.n::integer as n, s.item, s.asset, s.amount, s.payee, s.pay_within_ms, s.machine, s.campaign, s.coupon_life_ms,
    s.metadata, s.per_buyer, s.once, s.opens_at, s.closes_at
from (
    select generate_subscripts(@sales::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@sales::text[]) as sale
) u
cross join lateral (
    select l.* from sale_sales l where l.tenant_id = u.tenant_id and l.sale = u.sale offset 0
) s;

-- name: SalePut :exec
-- Creates or changes a sale, which is locked if it exists.
insert into sale_sales (tenant_id, sale, item, asset, amount, payee, pay_within_ms, machine, campaign, coupon_life_ms,
    metadata, per_buyer, once, opens_at, closes_at, principal, request_id, created_at, changed_at)
select @tenant_id::integer, @sale::text, @item::text, nullif(@asset::text, ''), nullif(@amount::text, ''),
    nullif(@payee::text, ''), nullif(@pay_within_ms::bigint, 0), nullif(@machine::text, ''),
    nullif(@campaign::text, ''), nullif(@coupon_life_ms::bigint, 0), @metadata::jsonb, @per_buyer::smallint,
    @once::boolean, nullif(@opens_at::timestamptz, '0001-01-01 00:00:00+00'),
    nullif(@closes_at::timestamptz, '0001-01-01 00:00:00+00'), @principal::text, @request_id::text,
    @now::timestamptz, @now::timestamptz
on conflict (tenant_id, sale) do update
set item = excluded.item, asset = excluded.asset, amount = excluded.amount, payee = excluded.payee,
    pay_within_ms = excluded.pay_within_ms, machine = excluded.machine, campaign = excluded.campaign,
    coupon_life_ms = excluded.coupon_life_ms, metadata = excluded.metadata, per_buyer = excluded.per_buyer,
    once = excluded.once, opens_at = excluded.opens_at, closes_at = excluded.closes_at,
    principal = excluded.principal, request_id = excluded.request_id, changed_at = excluded.changed_at;

-- name: SaleGet :one
select s.item, s.asset, s.amount, s.payee, s.pay_within_ms, s.machine, s.campaign, s.coupon_life_ms, s.metadata,
    s.per_buyer, s.once, s.opens_at, s.closes_at,
    (coalesce(s.opens_at <= now(), true) and coalesce(s.closes_at > now(), true))::boolean as open
from sale_sales s
where s.tenant_id = @tenant_id::integer and s.sale = @sale::text;

-- name: SalePage :many
-- Sales after a name.
select s.sale, s.item, s.asset, s.amount, s.payee, s.pay_within_ms, s.machine, s.campaign, s.coupon_life_ms, s.metadata,
    s.per_buyer, s.once, s.opens_at, s.closes_at
from sale_sales s
where s.tenant_id = @tenant_id::integer and s.sale > @after::text
order by s.sale
limit @count::integer;
