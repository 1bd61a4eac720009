-- Reads of stock in a batch. Arrays have the same length; n is a position in them, from 1. The tenant is passed in an
-- array and the index is reached by a lateral sub-select with offset 0, so that a generic plan made on an empty table
-- stays right on a full one.

-- name: ItemLock :many
-- Locks segments in the order of the arrays, which callers sort by tenant, item and segment.
select u.n::integer as n, i.segments, i.strategy, i.available, i.reserved, i.sold, i.stocked, i.version,
    i.next_expiry_at, i.xmin, i.ctid
from (
    select generate_subscripts(@items::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@items::text[]) as item, unnest(@segment::smallint[]) as segment
) u
cross join lateral (
    select l.segments, l.strategy, l.available, l.reserved, l.sold, l.stocked, l.version, l.next_expiry_at, l.xmin,
        l.ctid
    from stock_items l
    where l.tenant_id = u.tenant_id and l.item = u.item and l.segment = u.segment
    offset 0
    for no key update
) i;

-- name: ItemLookup :many
-- ItemLock without locks: ItemUpdate and ItemConfirm check that the rows have not changed since. The strategy atomic
-- checks only the available units, in ItemTake.
select u.n::integer as n, i.segments, i.strategy, i.available, i.reserved, i.sold, i.stocked, i.version,
    i.next_expiry_at, i.xmin, i.ctid
from (
    select generate_subscripts(@items::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@items::text[]) as item, unnest(@segment::smallint[]) as segment
) u
cross join lateral (
    select l.segments, l.strategy, l.available, l.reserved, l.sold, l.stocked, l.version, l.next_expiry_at, l.xmin,
        l.ctid
    from stock_items l
    where l.tenant_id = u.tenant_id and l.item = u.item and l.segment = u.segment
    offset 0
) i;

-- name: ItemAdvisoryLock :exec
-- Acquires the advisory lock of the segment, until the end of the transaction.
select pg_advisory_xact_lock(77017, hashtext(concat_ws('/', @tenant_id::integer, @segment::smallint, @item::text)));

-- name: ItemConfirm :exec
-- Locks all segments that an optimistic batch read. Fails unless the last writer of each is the transaction that the
-- batch expects.
select commit_expect(count(*), cardinality(@items::text[]))
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@items::text[]) as item,
        unnest(@segment::smallint[]) as segment, unnest(@writers::xid[]) as writer
) u
cross join lateral (
    select 1
    from stock_items l
    where l.tenant_id = u.tenant_id and l.item = u.item and l.segment = u.segment and l.xmin = u.writer
    offset 0
    for no key update
) i;

-- name: DetailLookup :many
select u.n::integer as n, d.label, d.metadata, d.created_at, d.changed_at, d.principal, d.request_id
from (
    select generate_subscripts(@items::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@items::text[]) as item
) u
cross join lateral (
    select l.label, l.metadata, l.created_at, l.changed_at, l.principal, l.request_id
    from stock_item_details l where l.tenant_id = u.tenant_id and l.item = u.item offset 0
) d;

-- name: ReservationLookup :many
select u.n::integer as n, r.ctid, r.reservation_id, r.quantity, r.unsold, r.segment, r.draws, r.state, r.ref,
    r.life_ms, r.created_at, r.expires_at, r.closed_at, r.principal, r.request_id, r.closed_principal,
    r.closed_request_id
from (
    select generate_subscripts(@items::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@items::text[]) as item, unnest(@reservation_nos::text[]) as reservation_no
) u
cross join lateral (
    select l.ctid, l.reservation_id, l.quantity, l.unsold, l.segment, l.draws, l.state, l.ref, l.life_ms,
        l.created_at, l.expires_at, l.closed_at, l.principal, l.request_id, l.closed_principal, l.closed_request_id
    from stock_reservations l
    where l.tenant_id = u.tenant_id and l.item = u.item and l.reservation_no = u.reservation_no offset 0
) r;

-- name: ChangeLookup :many
select u.n::integer as n, c.change_id, c.kind, c.quantity, c.stocked_after, c.reservation_no, c.reason, c.changed_at,
    c.request_id
from (
    select generate_subscripts(@items::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@items::text[]) as item, unnest(@change_nos::text[]) as change_no
) u
cross join lateral (
    select l.change_id from stock_change_names l
    where l.tenant_id = u.tenant_id and l.item = u.item and l.change_no = u.change_no offset 0
) k
cross join lateral (
    select l.change_id, l.kind, l.quantity, l.stocked_after, l.reservation_no, l.reason, l.changed_at, l.request_id
    from stock_changes l where l.tenant_id = u.tenant_id and l.change_id = k.change_id offset 0
) c;

-- name: ReservationDue :many
-- For each item: the expired open reservations, up to a limit, and the one that expires next. Expired ones are locked,
-- except those that another session has locked (free is false): their expiry is recorded later, so that a command that
-- does not need their units need not wait. The comparison of two columns leaves the planner one index to choose.
select u.n::integer as n, r.tid, r.reservation_no, r.quantity, r.segment, r.draws, r.expires_at, r.free
from (
    select generate_subscripts(@items::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@items::text[]) as item
) u
cross join lateral (
    (select d.tid, d.reservation_no, d.quantity, d.segment, d.draws, d.expires_at, coalesce(f.free, false) as free
    from (
        select l.ctid as tid, l.reservation_no, l.quantity, l.segment, l.draws, l.expires_at
        from stock_reservations l
        where l.tenant_id = u.tenant_id and l.item = u.item and l.state = 'reserved'
            and (l.item, l.expires_at) <= (u.item, @now::timestamptz)
        order by l.expires_at
        limit @most::bigint
    ) d
    left join lateral (
        select true as free from stock_reservations y
        where y.tenant_id = u.tenant_id and y.item = u.item and y.reservation_no = d.reservation_no
        offset 0 for no key update skip locked
    ) f on true)
    union all
    (select l.ctid as tid, l.reservation_no, l.quantity, l.segment, l.draws, l.expires_at, true
    from stock_reservations l
    where l.tenant_id = u.tenant_id and l.item = u.item and l.state = 'reserved'
        and (l.item, l.expires_at) > (u.item, @now::timestamptz)
    order by l.expires_at
    limit 1)
) r;

-- name: DuePage :many
-- Segments whose next_expiry_at passed at least a given time ago, oldest first, after a given one, for the background
-- task. Uses now(), because clock_timestamp() cannot be an index condition: all items would be read.
select l.tenant_id, l.item, l.next_expiry_at from stock_items l
where l.next_expiry_at <= now() - make_interval(secs => @delay_s::double precision)
    and (l.next_expiry_at, l.tenant_id, l.item) > (@after::timestamptz, @after_tenant::integer, @after_item::text)
order by l.next_expiry_at, l.tenant_id, l.item
limit @batch::integer;
