-- Writes of stock in a batch: one statement for each table, sorted by key. Arrays except metadata have no nulls: the
-- zero time, 0 and the empty text mean null in nullable columns.

-- name: ItemInsert :exec
insert into stock_items (tenant_id, item, segment, segments, strategy, available, reserved, sold, stocked, version,
    next_expiry_at)
select u.tenant_id, u.item, u.segment, u.segments, u.strategy, u.available, u.reserved, u.sold, u.stocked, u.version,
    nullif(u.next_expiry_at, '0001-01-01 00:00:00+00')
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@items::text[]) as item,
        unnest(@segment::smallint[]) as segment, unnest(@segments::smallint[]) as segments,
        unnest(@strategies::text[]) as strategy,
        unnest(@available::bigint[]) as available, unnest(@reserved::bigint[]) as reserved,
        unnest(@sold::bigint[]) as sold, unnest(@stocked::bigint[]) as stocked,
        unnest(@versions::bigint[]) as version, unnest(@next_expiry_at::timestamptz[]) as next_expiry_at
) u
order by u.tenant_id, u.item collate "C", u.segment;

-- name: ItemUpdate :exec
-- Updates segments, in the order of the arrays. Fails unless every row is still the version that the batch read. A row
-- is found by ctid if that is known, which saves an index lookup. Only PutItem changes segments and strategies: without
-- it both arrays are null.
with updated as (
    update stock_items i
    set segments = coalesce(y.segments, i.segments), strategy = coalesce(y.strategy, i.strategy),
        available = y.available, reserved = y.reserved, sold = y.sold, stocked = y.stocked, version = y.version,
        next_expiry_at = nullif(y.next_expiry_at, '0001-01-01 00:00:00+00')
    from (
        select coalesce(u.tid, (
                select k.ctid from stock_items k
                where k.tenant_id = u.tenant_id and k.item = u.item and k.segment = u.segment
            )) as tid, u.tenant_id, u.item, u.segment, u.writer, u.segments, u.strategy, u.available, u.reserved,
            u.sold, u.stocked, u.version, u.next_expiry_at
        from (
            select unnest(@tenants::integer[]) as tenant_id, unnest(@items::text[]) as item,
                unnest(@segment::smallint[]) as segment, unnest(@tids::tid[]) as tid,
                unnest(@writers::xid[]) as writer, unnest(@segments::smallint[]) as segments,
                unnest(@strategies::text[]) as strategy,
                unnest(@available::bigint[]) as available, unnest(@reserved::bigint[]) as reserved,
                unnest(@sold::bigint[]) as sold, unnest(@stocked::bigint[]) as stocked,
                unnest(@versions::bigint[]) as version, unnest(@next_expiry_at::timestamptz[]) as next_expiry_at
        ) u
        offset 0
    ) y
    where i.ctid = y.tid and i.xmin = y.writer and i.tenant_id = y.tenant_id and i.item = y.item
        and i.segment = y.segment
    returning 1
)
select commit_expect(count(*), cardinality(@items::text[])) from updated;

-- name: ItemTake :exec
-- Takes units by one conditional update, even if the row has changed since it was read. Fails if too few are available.
-- The zero time means no expiry.
with updated as (
    update stock_items i
    set available = i.available - y.reserved - y.sold, reserved = i.reserved + y.reserved, sold = i.sold + y.sold,
        version = i.version + 1,
        next_expiry_at = least(i.next_expiry_at, nullif(y.next_expiry_at, '0001-01-01 00:00:00+00'))
    from (
        select @tenant_id::integer as tenant_id, @item::text as item, @segment::smallint as segment,
            @reserved::bigint as reserved, @sold::bigint as sold, @next_expiry_at::timestamptz as next_expiry_at
    ) y
    where i.tenant_id = y.tenant_id and i.item = y.item and i.segment = y.segment
        and i.available >= y.reserved + y.sold
    returning 1
)
select commit_expect(count(*), 1) from updated;

-- name: DetailInsert :exec
insert into stock_item_details (tenant_id, item, label, metadata, created_at, changed_at, principal, request_id)
select u.tenant_id, u.item, u.label, u.metadata, @now::timestamptz, @now::timestamptz, u.principal, u.request_id
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@items::text[]) as item, unnest(@labels::text[]) as label,
        unnest(@metadata::jsonb[]) as metadata, unnest(@principals::text[]) as principal,
        unnest(@request_ids::text[]) as request_id
) u
order by u.tenant_id, u.item collate "C";

-- name: DetailUpdate :exec
with updated as (
    update stock_item_details d
    set label = u.label, metadata = u.metadata, changed_at = @now::timestamptz, principal = u.principal,
        request_id = u.request_id
    from (
        select unnest(@tenants::integer[]) as tenant_id, unnest(@items::text[]) as item,
            unnest(@labels::text[]) as label, unnest(@metadata::jsonb[]) as metadata,
            unnest(@principals::text[]) as principal, unnest(@request_ids::text[]) as request_id
    ) u
    where d.tenant_id = u.tenant_id and d.item = u.item
    returning 1
)
select commit_expect(count(*), cardinality(@items::text[])) from updated;

-- name: ReservationInsert :exec
insert into stock_reservations (tenant_id, item, reservation_no, reservation_id, quantity, unsold, segment, draws,
    state, ref, life_ms, created_at, expires_at, closed_at, principal, request_id, closed_principal,
    closed_request_id)
select u.tenant_id, u.item, u.reservation_no, u.reservation_id, u.quantity, coalesce(u.unsold, 0),
    coalesce(u.segment, 0), nullif(u.draws, '')::bigint[], u.state, nullif(u.ref, ''), nullif(u.life_ms, 0),
    @now::timestamptz, nullif(u.expires_at, '0001-01-01 00:00:00+00'),
    nullif(u.closed_at, '0001-01-01 00:00:00+00'), u.principal, u.request_id,
    nullif(u.closed_principal, ''), nullif(u.closed_request_id, '')
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@items::text[]) as item,
        unnest(@reservation_nos::text[]) as reservation_no, unnest(@reservation_ids::bigint[]) as reservation_id,
        unnest(@quantities::bigint[]) as quantity, unnest(@unsold::bigint[]) as unsold,
        unnest(@segments::smallint[]) as segment, unnest(@draws::text[]) as draws, unnest(@states::text[]) as state,
        unnest(@refs::text[]) as ref, unnest(@life_ms::bigint[]) as life_ms,
        unnest(@expires_at::timestamptz[]) as expires_at, unnest(@closed_at::timestamptz[]) as closed_at,
        unnest(@principals::text[]) as principal, unnest(@request_ids::text[]) as request_id,
        unnest(@closed_principals::text[]) as closed_principal,
        unnest(@closed_request_ids::text[]) as closed_request_id
) u
order by u.tenant_id, u.item collate "C", u.reservation_no collate "C";

-- name: ReservationUpdate :exec
-- Updates reservations, in the order of the arrays. Fails unless each is still the row version that the batch read: the
-- batch may not have locked their items yet.
with updated as (
    update stock_reservations r
    set unsold = y.unsold, state = y.state, closed_at = y.closed_at,
        closed_principal = nullif(y.closed_principal, ''), closed_request_id = nullif(y.closed_request_id, '')
    from (
        select unnest(@tids::tid[]) as tid, unnest(@tenants::integer[]) as tenant_id, unnest(@items::text[]) as item,
            unnest(@reservation_nos::text[]) as reservation_no, unnest(@seen_unsold::bigint[]) as seen_unsold,
            unnest(@seen_states::text[]) as seen_state, unnest(@unsold::bigint[]) as unsold,
            unnest(@states::text[]) as state, unnest(@closed_at::timestamptz[]) as closed_at,
            unnest(@closed_principals::text[]) as closed_principal,
            unnest(@closed_request_ids::text[]) as closed_request_id
        offset 0
    ) y
    where r.ctid = y.tid and r.tenant_id = y.tenant_id and r.item = y.item and r.reservation_no = y.reservation_no
        and r.state = y.seen_state and r.unsold = y.seen_unsold
    returning 1
)
select commit_expect(count(*), cardinality(@items::text[])) from updated;

-- name: ChangeNameInsert :exec
insert into stock_change_names (tenant_id, item, change_no, change_id)
select u.tenant_id, u.item, u.change_no, u.change_id
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@items::text[]) as item,
        unnest(@change_nos::text[]) as change_no, unnest(@change_ids::bigint[]) as change_id
) u
order by u.tenant_id, u.item collate "C", u.change_no collate "C";

-- name: ChangeInsert :exec
insert into stock_changes (tenant_id, change_id, item, change_no, kind, quantity, stocked_after, reservation_no, reason,
    changed_at, principal, request_id)
select u.tenant_id, u.change_id, u.item, u.change_no, u.kind, u.quantity, u.stocked_after,
    nullif(u.reservation_no, ''), u.reason, @now::timestamptz, u.principal, u.request_id
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@change_ids::bigint[]) as change_id,
        unnest(@items::text[]) as item, unnest(@change_nos::text[]) as change_no, unnest(@kinds::text[]) as kind,
        unnest(@quantities::bigint[]) as quantity, unnest(@stocked_after::bigint[]) as stocked_after,
        unnest(@reservation_nos::text[]) as reservation_no, unnest(@reasons::text[]) as reason,
        unnest(@principals::text[]) as principal, unnest(@request_ids::text[]) as request_id
) u;
