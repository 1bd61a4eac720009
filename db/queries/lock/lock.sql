-- Statements on locks and their waiters in batches.

-- name: BatchEnter :exec
-- Held by every batch that uses locks, from before it looks for their rows until it ends. The background task needs it
-- exclusively to delete rows. So no row disappears between a batch's lookup and its insert, and a fence drawn when
-- there was no row is greater than the fences of all earlier rows. Unlike an advisory lock, a lock on a table requires
-- privileges.
lock table lock_locks in row exclusive mode;

-- name: LockLock :many
-- Locks and reads locks, in the order of the arrays, which callers sort.
select l.ctid, u.n::integer as n, l.state, l.principal, l.holder, l.fence, l.holds, l.lease_ms, l.acquired_at,
    l.expires_at, l.freed_at, l.request_id
from (
    select generate_subscripts(@names::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@names::text[]) as name
) u
cross join lateral (
    select k.ctid, k.state, k.principal, k.holder, k.fence, k.holds, k.lease_ms, k.acquired_at, k.expires_at,
        k.freed_at, k.request_id
    from lock_locks k
    where k.tenant_id = u.tenant_id and k.name = u.name
    for no key update
    offset 0
) l;

-- name: FenceDraw :many
-- Draws fences and tickets, when all row locks are held.
select (e.base + nextval('lock_fence_seq'))::bigint as fence
from (select commit_base() as base offset 0) e, generate_series(1, @draws::integer);

-- name: WaiterLookup :many
-- Waiters of locks whose rows are locked, ordered by ticket.
select w.ctid, u.n::integer as n, w.ticket, w.alive_until
from (
    select generate_subscripts(@names::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@names::text[]) as name
) u
cross join lateral (
    select k.ctid, k.ticket, k.alive_until
    from lock_waiters k
    where k.tenant_id = u.tenant_id and k.name = u.name
    offset 0
) w
order by u.n, w.ticket;

-- name: LockInsert :exec
insert into lock_locks (tenant_id, name, state, principal, holder, fence, holds, lease_ms, acquired_at, expires_at,
    freed_at, request_id)
select u.tenant_id, u.name, u.state, u.principal, u.holder, u.fence, u.holds, u.lease_ms, u.acquired_at, u.expires_at,
    nullif(u.freed_at, '0001-01-01 00:00:00+00'), u.request_id
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@names::text[]) as name, unnest(@states::text[]) as state,
        unnest(@principals::text[]) as principal, unnest(@holders::text[]) as holder,
        unnest(@fences::bigint[]) as fence, unnest(@holds::integer[]) as holds,
        unnest(@lease_ms::integer[]) as lease_ms, unnest(@acquired_at::timestamptz[]) as acquired_at,
        unnest(@expires_at::timestamptz[]) as expires_at, unnest(@freed_at::timestamptz[]) as freed_at,
        unnest(@request_ids::text[]) as request_id
) u
order by u.tenant_id, u.name collate "C";

-- name: LockUpdate :exec
-- Updates locks whose rows are locked.
with updated as (
    update lock_locks l
    set state = u.state, principal = u.principal, holder = u.holder, fence = u.fence, holds = u.holds,
        lease_ms = u.lease_ms, acquired_at = u.acquired_at, expires_at = u.expires_at,
        freed_at = nullif(u.freed_at, '0001-01-01 00:00:00+00'), request_id = u.request_id
    from (
        select unnest(@tids::tid[]) as tid, unnest(@states::text[]) as state,
            unnest(@principals::text[]) as principal, unnest(@holders::text[]) as holder,
            unnest(@fences::bigint[]) as fence, unnest(@holds::integer[]) as holds,
            unnest(@lease_ms::integer[]) as lease_ms, unnest(@acquired_at::timestamptz[]) as acquired_at,
            unnest(@expires_at::timestamptz[]) as expires_at, unnest(@freed_at::timestamptz[]) as freed_at,
            unnest(@request_ids::text[]) as request_id
    ) u
    where l.ctid = u.tid
    returning 1
)
select commit_expect(count(*), cardinality(@tids::tid[])) from updated;

-- name: WaiterInsert :exec
insert into lock_waiters (tenant_id, name, ticket, principal, holder, instance, queued_at, alive_until, request_id)
select u.tenant_id, u.name, u.ticket, u.principal, u.holder, u.instance, @now::timestamptz, u.alive_until, u.request_id
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@names::text[]) as name,
        unnest(@tickets::bigint[]) as ticket, unnest(@principals::text[]) as principal,
        unnest(@holders::text[]) as holder, unnest(@instances::text[]) as instance,
        unnest(@alive_until::timestamptz[]) as alive_until, unnest(@request_ids::text[]) as request_id
) u
order by u.tenant_id, u.name collate "C", u.ticket;

-- name: WaiterUpdate :exec
-- Extends the alive_until of waiters. The rows of their locks are locked.
with updated as (
    update lock_waiters w set alive_until = u.alive_until
    from (select unnest(@tids::tid[]) as tid, unnest(@alive_until::timestamptz[]) as alive_until) u
    where w.ctid = u.tid
    returning 1
)
select commit_expect(count(*), cardinality(@tids::tid[])) from updated;

-- name: WaiterDelete :exec
with deleted as (
    delete from lock_waiters w using unnest(@tids::tid[]) as u (tid) where w.ctid = u.tid returning 1
)
select commit_expect(count(*), cardinality(@tids::tid[])) from deleted;
