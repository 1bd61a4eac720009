-- Reads of stock beside the engine, each on one snapshot, planned with their actual values. An expired reservation is
-- read as expired, even if its expiry is not recorded yet.

-- name: ItemRead :one
-- An item with its counts over all segments.
select d.item, d.label, d.metadata, d.created_at, d.changed_at, i.segments, i.strategy,
    (i.available + r.due)::bigint as available, (i.reserved - r.due)::bigint as reserved, i.sold, i.stocked
from stock_item_details d
cross join lateral (
    select max(l.segments)::smallint as segments, max(l.strategy)::text as strategy,
        sum(l.available)::bigint as available,
        sum(l.reserved)::bigint as reserved, sum(l.sold)::bigint as sold, sum(l.stocked)::bigint as stocked
    from stock_items l where l.tenant_id = d.tenant_id and l.item = d.item offset 0
) i
cross join lateral (
    select coalesce(sum(l.quantity), 0) as due from stock_reservations l
    where l.tenant_id = d.tenant_id and l.item = d.item and l.state = 'reserved' and l.expires_at <= now() offset 0
) r
where d.tenant_id = @tenant_id::integer and d.item = @item::text;

-- name: ItemPage :many
-- Items after a given one whose names begin with a prefix. No item sorts after 32 times the last character, 128 bytes.
select d.item, d.label, d.metadata, d.created_at, d.changed_at, i.segments, i.strategy,
    (i.available + r.due)::bigint as available, (i.reserved - r.due)::bigint as reserved, i.sold, i.stocked
from (
    select l.tenant_id, l.item, l.label, l.metadata, l.created_at, l.changed_at from stock_item_details l
    where l.tenant_id = @tenant_id::integer and l.item > @after::text and l.item >= @prefix::text
        and l.item <= @prefix::text || repeat(chr(1114111), 32)
    order by l.item
    limit @count::integer
) d
cross join lateral (
    select max(l.segments)::smallint as segments, max(l.strategy)::text as strategy,
        sum(l.available)::bigint as available,
        sum(l.reserved)::bigint as reserved, sum(l.sold)::bigint as sold, sum(l.stocked)::bigint as stocked
    from stock_items l where l.tenant_id = d.tenant_id and l.item = d.item offset 0
) i
cross join lateral (
    select coalesce(sum(l.quantity), 0) as due from stock_reservations l
    where l.tenant_id = d.tenant_id and l.item = d.item and l.state = 'reserved' and l.expires_at <= now() offset 0
) r
order by d.item;

-- name: ReservationGet :one
select l.reservation_no, l.reservation_id, l.quantity, l.unsold, l.segment, l.draws, l.state, l.ref, l.life_ms,
    l.created_at, l.expires_at, l.closed_at, l.principal, l.request_id, l.closed_principal, l.closed_request_id,
    clock_timestamp()::timestamptz as now
from stock_reservations l
where l.tenant_id = @tenant_id::integer and l.item = @item::text and l.reservation_no = @reservation_no::text;

-- name: ReservationPage :many
-- Reservations of an item after a given number, in the order of numbers. Reads a limited number of rows.
select r.reservation_no, r.reservation_id, r.quantity, r.unsold, r.segment, r.draws, r.state, r.ref, r.life_ms,
    r.created_at, r.expires_at, r.closed_at, r.principal, r.request_id, r.closed_principal, r.closed_request_id,
    now()::timestamptz as now
from (
    select l.reservation_no, l.reservation_id, l.quantity, l.unsold, l.segment, l.draws, l.state, l.ref, l.life_ms,
        l.created_at, l.expires_at, l.closed_at, l.principal, l.request_id, l.closed_principal, l.closed_request_id
    from stock_reservations l
    where l.tenant_id = @tenant_id::integer and l.item = @item::text and l.reservation_no > @after::text
    order by l.reservation_no
    limit @scan::integer
) r
where @only_state::text = '' or @only_state::text = case
    when r.state = 'reserved' and r.expires_at <= now() then 'expired' else r.state
end
order by r.reservation_no
limit @count::integer;

-- name: ReservationPageEnd :one
-- How many reservations ReservationPage read, and the last one of them.
select count(*)::integer as scanned, coalesce(max(r.reservation_no), '')::text as last
from (
    select l.reservation_no from stock_reservations l
    where l.tenant_id = @tenant_id::integer and l.item = @item::text and l.reservation_no > @after::text
    order by l.reservation_no
    limit @scan::integer
) r;

-- name: ReservationPageOpen :many
-- Reservations of an item that have not ended, after a given one, in the order in which they expire.
select l.reservation_no, l.reservation_id, l.quantity, l.unsold, l.segment, l.draws, l.state, l.ref, l.life_ms,
    l.created_at, l.expires_at, l.closed_at, l.principal, l.request_id, l.closed_principal, l.closed_request_id,
    now()::timestamptz as now
from stock_reservations l
where l.tenant_id = @tenant_id::integer and l.item = @item::text and l.state = 'reserved'
    and l.expires_at > now() and (l.expires_at, l.reservation_no) > (@after::timestamptz, @after_no::text)
order by l.expires_at, l.reservation_no
limit @count::integer;
