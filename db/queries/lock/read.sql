-- Reads beside the engine, and statements of the background task.

-- name: LockGet :one
-- A lock that is held now, and the number of its waiters.
select l.name, l.principal, l.holder, l.fence, l.holds, l.lease_ms, l.acquired_at, l.expires_at, l.request_id,
    (select count(*) from lock_waiters w where w.tenant_id = l.tenant_id and w.name = l.name
    and w.alive_until > clock_timestamp())::integer as waiters
from lock_locks l
where l.tenant_id = @tenant_id and l.name = @name and l.state = 'held' and l.expires_at > clock_timestamp();

-- name: WaiterCount :one
select count(*)::integer from lock_waiters w where w.tenant_id = @tenant_id and w.name = @name
    and w.alive_until > clock_timestamp();

-- name: LockPage :many
-- Locks that are held now, by name. No name sorts after 64 times the last character.
select l.name, l.principal, l.holder, l.fence, l.holds, l.lease_ms, l.acquired_at, l.expires_at, l.request_id
from lock_locks l
where l.tenant_id = @tenant_id and l.name > @after and l.name >= @prefix::text
    and l.name <= @prefix::text || repeat(chr(1114111), 64)
    and l.state = 'held' and l.expires_at > clock_timestamp()
order by l.name
limit @size::integer;

-- name: QueueHeads :many
-- For locks with waiters: the first ticket of the queue (0: none), and when the present lease expires, in microseconds
-- from now (0 or less: nothing blocks the waiters).
select u.n::integer as n,
    coalesce((select min(w.ticket) from lock_waiters w
        where w.tenant_id = u.tenant_id and w.name = u.name and w.alive_until > clock_timestamp()), 0)::bigint as head,
    coalesce((select extract(epoch from k.expires_at - clock_timestamp()) * 1000000 from lock_locks k
        where k.tenant_id = u.tenant_id and k.name = u.name and k.state = 'held'), 0)::bigint as left_us
from (
    select generate_subscripts(@names::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@names::text[]) as name
) u;

-- name: Hint :exec
-- Wakes waiters in other processes. In a transaction of its own, because commits that notify wait for each other.
select pg_notify('ledgerd_lock', @tickets::text);

-- name: CleanSettings :exec
select set_config('lock_timeout', '100', true), set_config('statement_timeout', '10000', true),
    set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
    set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true);

-- name: CleanEnter :exec
-- See BatchEnter.
lock table lock_locks in share row exclusive mode;

-- name: WaiterClean :execrows
-- Deletes waiters whose callers are gone.
delete from lock_waiters
where ctid = any(array(
    select w.ctid from lock_waiters w
        where w.alive_until < now() - interval '10 s' limit @batch::integer for update skip locked
));

-- name: LockStalePage :many
-- Locks that have been free for a while, after a given one, by tenant and name.
select l.tenant_id, l.name
from lock_locks l
where (l.tenant_id, l.name) > (@after_tenant::integer, @after_name::text)
    and coalesce(l.freed_at, l.expires_at) < now() - make_interval(secs => @spare_s::integer)
order by l.tenant_id, l.name
limit @size::integer;

-- name: LockClean :one
-- Deletes locks that have been free for a while and have no waiters. Returns how many, and how many of them expired
-- instead of being released.
with gone as (
    delete from lock_locks l
    using (
        select k.ctid as tid
        from (select unnest(@tenants::integer[]) as tenant_id, unnest(@names::text[]) as name) u
        cross join lateral (
            select c.ctid from lock_locks c
            where c.tenant_id = u.tenant_id and c.name = u.name
                and coalesce(c.freed_at, c.expires_at) < now() - make_interval(secs => @spare_s::integer)
                and not exists (select from lock_waiters w where w.tenant_id = c.tenant_id and w.name = c.name)
            for update skip locked
            offset 0
        ) k
    ) y
    where l.ctid = y.tid
    returning l.state
)
select count(*)::integer as deleted, (count(*) filter (where state = 'held'))::integer as lapsed from gone;
