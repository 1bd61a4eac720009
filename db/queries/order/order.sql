-- Statements on orders, in batches. Arrays have the same length; n is a position in them, from 1. They have no nulls: 0
-- and the empty text mean null. Orders never change, so no statement locks them.

-- name: OrderLookup :many
select u.n::integer as n, o.order_no, o.order_id, o.machine, o.subject, o.asset, o.scale, o.amount, o.lines, o.payee,
    o.pay_within_ms, o.life_ms, o.reserve, o.balance_account, o.balance_amount, o.purchase_parts, o.purchase_life_ms,
    o.metadata, o.coupon, o.sale, o.sale_unit, o.once, o.expiry_messages, o.principal, o.request_id, o.created_at
from (
    select generate_subscripts(@order_nos::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@order_nos::text[]) as order_no
) u
cross join lateral (
    select l.* from order_orders l where l.tenant_id = u.tenant_id and l.order_no = u.order_no offset 0
) o;

-- name: OrderInsert :exec
-- Inserts orders in the order of the arrays, which callers sort.
insert into order_orders (tenant_id, order_no, order_id, machine, subject, asset, scale, amount, lines, payee,
    pay_within_ms, life_ms, reserve, balance_account, balance_amount, purchase_parts, purchase_life_ms, metadata,
    coupon, sale, sale_unit, once, expiry_messages, submit_token, principal, request_id, created_at)
select u.tenant_id, u.order_no, u.order_id, u.machine, u.subject, u.asset, u.scale, u.amount, u.lines,
    nullif(u.payee, ''), nullif(u.pay_within_ms, 0), nullif(u.life_ms, 0), u.reserve, nullif(u.balance_account, ''),
    nullif(u.balance_amount, 0), u.purchase_parts, nullif(u.purchase_life_ms, 0), u.metadata, nullif(u.coupon, ''),
    nullif(u.sale, ''), nullif(u.sale_unit, 0), u.once, u.expiry_messages, u.submit_token, u.principal, u.request_id,
    @now::timestamptz
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@order_nos::text[]) as order_no,
        unnest(@order_ids::bigint[]) as order_id, unnest(@machines::text[]) as machine,
        unnest(@subjects::text[]) as subject, unnest(@assets::text[]) as asset, unnest(@scales::smallint[]) as scale,
        unnest(@amounts::numeric[]) as amount, unnest(@lines::jsonb[]) as lines, unnest(@payees::text[]) as payee,
        unnest(@pay_within_ms::bigint[]) as pay_within_ms, unnest(@life_ms::bigint[]) as life_ms,
        unnest(@reserve::boolean[]) as reserve, unnest(@balance_accounts::text[]) as balance_account,
        unnest(@balance_amounts::numeric[]) as balance_amount, unnest(@purchase_parts::jsonb[]) as purchase_parts,
        unnest(@purchase_life_ms::bigint[]) as purchase_life_ms, unnest(@metadata::jsonb[]) as metadata,
        unnest(@coupons::text[]) as coupon, unnest(@sales::text[]) as sale,
        unnest(@sale_units::smallint[]) as sale_unit, unnest(@once::boolean[]) as once,
        unnest(@expiry_messages::jsonb[]) as expiry_messages, unnest(@submit_tokens::bytea[]) as submit_token,
        unnest(@principals::text[]) as principal, unnest(@request_ids::text[]) as request_id
) u;

-- name: OrderOfPayment :many
-- Orders by the numbers of their payments. Neither changes.
select u.n::integer as n, p.order_no, o.order_id, o.machine, o.subject, o.asset, o.scale, o.amount, o.lines, o.payee,
    o.pay_within_ms, o.life_ms, o.reserve, o.balance_account, o.balance_amount, o.purchase_parts, o.purchase_life_ms,
    o.metadata, o.coupon, o.sale, o.sale_unit, o.once, o.expiry_messages, o.principal, o.request_id, o.created_at
from (
    select generate_subscripts(@out_trade_nos::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@out_trade_nos::text[]) as out_trade_no
) u
cross join lateral (
    select l.order_no from payment_payments l
    where l.tenant_id = u.tenant_id and l.out_trade_no = u.out_trade_no offset 0
) p
cross join lateral (
    select l.* from order_orders l where l.tenant_id = u.tenant_id and l.order_no = p.order_no offset 0
) o;
