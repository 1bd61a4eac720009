-- Locks for work in other systems: leases with fences, and the queues of their waiters. Locks nothing.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
set local role ledgerd_owner;

create sequence lock_fence_seq as bigint;
comment on sequence lock_fence_seq is
    'Fences of acquisitions and tickets of waiters. A number is drawn while the row of the lock is locked, so the '
    'numbers of a lock grow in commit order, also after the cleaner deleted the row. The base of the epoch '
    'is added: see commit_base.';

create table lock_locks (
    tenant_id   integer not null,
    name        text collate "C" not null,
    state       text collate "C" not null,
    principal   text collate "C" not null,
    holder      text collate "C" not null,
    fence       bigint not null,
    holds       integer not null,
    lease_ms    integer not null,
    acquired_at timestamptz not null,
    expires_at  timestamptz not null,
    freed_at    timestamptz,
    request_id  text collate "C" not null,
    constraint lock_locks_pkey primary key (tenant_id, name),
    constraint lock_locks_name_check check (octet_length(name) between 1 and 256),
    constraint lock_locks_holder_check check (octet_length(holder) between 1 and 128),
    constraint lock_locks_state_check check (state in ('held', 'free')),
    constraint lock_locks_fence_check check (fence > 0),
    constraint lock_locks_holds_check check (case state when 'held' then holds > 0 else holds = 0 end),
    constraint lock_locks_lease_ms_check check (lease_ms between 1000 and 3600000),
    constraint lock_locks_expires_at_check check (expires_at > acquired_at),
    constraint lock_locks_freed_at_check check ((freed_at is null) = (state = 'held'))
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
comment on table lock_locks is
    'Locks that are held, or were held recently. A lock past expires_at counts as free. The table is narrow and '
    'has no index on columns that change, so that a renewal stays in its page (HOT).';
comment on column lock_locks.tenant_id is 'Tenant.';
comment on column lock_locks.name is 'Name of the lock.';
comment on column lock_locks.state is 'held: until expires_at; free: released.';
comment on column lock_locks.principal is 'Principal that acquired it last.';
comment on column lock_locks.holder is 'Holder that acquired it last, as named by the caller.';
comment on column lock_locks.fence is
    'Fence of the acquisition. Later acquisitions of the lock have greater ones, for ever.';
comment on column lock_locks.holds is 'Number of releases that free it (reentrant acquisitions count).';
comment on column lock_locks.lease_ms is 'Length of the lease from its last renewal.';
comment on column lock_locks.acquired_at is 'When it was acquired.';
comment on column lock_locks.expires_at is 'When the lease expires, unless it is renewed.';
comment on column lock_locks.freed_at is 'When it was released.';
comment on column lock_locks.request_id is 'X-Request-ID of the call that acquired it.';

create table lock_waiters (
    tenant_id   integer not null,
    name        text collate "C" not null,
    ticket      bigint not null,
    principal   text collate "C" not null,
    holder      text collate "C" not null,
    instance    text collate "C" not null,
    queued_at   timestamptz not null,
    alive_until timestamptz not null,
    request_id  text collate "C" not null,
    constraint lock_waiters_pkey primary key (tenant_id, name, ticket),
    constraint lock_waiters_ticket_check check (ticket > 0),
    constraint lock_waiters_holder_check check (octet_length(holder) between 1 and 128)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
comment on table lock_waiters is
    'Queues of locks, ordered by ticket. Guarded by the row lock of the lock. A row past alive_until counts as '
    'deleted: its server has died.';
comment on column lock_waiters.tenant_id is 'Tenant.';
comment on column lock_waiters.name is 'Name of the lock.';
comment on column lock_waiters.ticket is 'Position in the queue: smaller tickets come first.';
comment on column lock_waiters.principal is 'Principal that waits.';
comment on column lock_waiters.holder is 'Holder that waits, as named by the caller.';
comment on column lock_waiters.instance is 'Process that keeps the place.';
comment on column lock_waiters.queued_at is 'When it was queued.';
comment on column lock_waiters.alive_until is 'When the place is lost, unless the process renews it.';
comment on column lock_waiters.request_id is 'X-Request-ID of the call that waits.';

-- +goose StatementBegin
create function lock_check(tenant integer, lock_name text, lock_fence bigint) returns void
    language plpgsql
    security definer
    set search_path from current
    as $$
begin
    perform from lock_locks l
    where l.tenant_id = tenant and l.name = lock_name and l.fence = lock_fence
        and l.state = 'held' and l.expires_at > clock_timestamp()
    for share;
    if not found then
        raise exception 'lock % is not held under fence %', lock_name, lock_fence using errcode = 'LF002';
    end if;
end
$$;
-- +goose StatementEnd
comment on function lock_check is
    'Fails the transaction, with SQLSTATE LF002, unless a lock is held now under a fence. Until the transaction '
    'ends, no other holder can acquire the lock and its holder cannot renew it: call it last.';
revoke execute on function lock_check from public;

create view audit.locks as
select t.name as tenant, l.name as lock,
    case when l.state = 'held' and l.expires_at <= clock_timestamp() then 'lapsed' else l.state end as state,
    l.holder, l.principal, l.fence, l.holds, l.lease_ms * interval '1 ms' as lease,
    l.acquired_at, l.expires_at, l.freed_at, l.request_id,
    (select count(*) from lock_waiters w
        where w.tenant_id = l.tenant_id and w.name = l.name and w.alive_until > clock_timestamp()) as waiters
from lock_locks l
left join access_tenants t on t.tenant_id = l.tenant_id;
comment on view audit.locks is 'Locks that are held, or were held recently.';
comment on column audit.locks.tenant is 'Name of the tenant.';
comment on column audit.locks.lock is 'Name of the lock.';
comment on column audit.locks.state is 'held; lapsed: the lease was not renewed in time; free: released.';
comment on column audit.locks.holder is 'Holder that acquired it last, as named by the caller.';
comment on column audit.locks.principal is 'Principal that acquired it last.';
comment on column audit.locks.fence is 'Fence of the acquisition. Later acquisitions of the lock have greater ones.';
comment on column audit.locks.holds is 'Number of releases that free it (reentrant acquisitions count).';
comment on column audit.locks.lease is 'Length of the lease from its last renewal.';
comment on column audit.locks.acquired_at is 'When it was acquired.';
comment on column audit.locks.expires_at is 'When it expires, or expired.';
comment on column audit.locks.freed_at is 'When it was released.';
comment on column audit.locks.request_id is 'X-Request-ID of the call that acquired it.';
comment on column audit.locks.waiters is 'Number of callers that wait for it.';

create view audit.lock_waiters as
select t.name as tenant, w.name as lock,
    row_number() over (partition by w.tenant_id, w.name order by w.ticket) as position,
    w.holder, w.principal, w.instance, w.queued_at, w.request_id, w.ticket
from lock_waiters w
left join access_tenants t on t.tenant_id = w.tenant_id
where w.alive_until > clock_timestamp();
comment on view audit.lock_waiters is 'Queues of locks.';
comment on column audit.lock_waiters.tenant is 'Name of the tenant.';
comment on column audit.lock_waiters.lock is 'Name of the lock.';
comment on column audit.lock_waiters.position is 'Position in the queue, from 1.';
comment on column audit.lock_waiters.holder is 'Holder that waits, as named by the caller.';
comment on column audit.lock_waiters.principal is 'Principal that waits.';
comment on column audit.lock_waiters.instance is 'Process that keeps the place.';
comment on column audit.lock_waiters.queued_at is 'When it was queued.';
comment on column audit.lock_waiters.request_id is 'X-Request-ID of the call that waits.';
comment on column audit.lock_waiters.ticket is 'Number by which the queue is ordered.';

grant usage, select on sequence lock_fence_seq to ledgerd_app;
grant select, insert, delete on lock_locks, lock_waiters to ledgerd_app;
grant update (state, principal, holder, fence, holds, lease_ms, acquired_at, expires_at, freed_at, request_id)
    on lock_locks to ledgerd_app;
grant update (alive_until) on lock_waiters to ledgerd_app;
grant select on lock_fence_seq, lock_locks, lock_waiters, audit.locks, audit.lock_waiters to ledgerd_audit;
reset role;

-- +goose Down
drop view audit.lock_waiters;
drop view audit.locks;
drop function lock_check;
drop table lock_waiters;
drop table lock_locks;
drop sequence lock_fence_seq;
