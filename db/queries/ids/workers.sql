-- Leases of worker numbers. Each statement is a transaction of its own, so that a process that is stopped in the middle
-- holds no lock. Its COMMIT waits for the disk, and for a synchronous standby if there is one, whatever the settings of
-- the role: a lease that a crash can lose protects nothing. Times are statement_timestamp(), which lies between request
-- and response.

-- name: WorkerLease :one
-- Leases a random free number: its lease has expired, and its mark (high_water_at, the upper limit of the times in its
-- ids) has passed. The choice is random so that, if the promotion of an asynchronous standby loses a lease, the same
-- number is unlikely to be leased again while its holder still uses it.
with asked as materialized (
    select cast(@term_ms as bigint) * interval '1 ms' as term, cast(@clock_at as timestamptz) as clock_at,
        cast(@holder as text) as holder, statement_timestamp() as now,
        set_config('synchronous_commit', case when current_setting('synchronous_commit') in ('off', 'local')
            then 'on' else current_setting('synchronous_commit') end, true) as durable
), free as (
    select w.worker, w.high_water_at as floor_at
    from ids_workers w
    where w.lease_expires_at <= statement_timestamp() and w.high_water_at <= statement_timestamp()
    order by random()
    limit 1
    for no key update skip locked
)
update ids_workers w
set fence = w.fence + 1, holder = a.holder, leased_at = a.now, lease_expires_at = a.now + a.term,
    high_water_at = greatest(a.now, a.clock_at) + a.term
from free f, asked a
where w.worker = f.worker and a.durable <> 'off'
returning w.worker, w.fence, f.floor_at, w.high_water_at, w.leased_at as now;

-- name: WorkerRenew :one
-- Extends a lease and advances its mark. Returns no row if another process has the number. The time is compared as well
-- as the fence, because after the restore of a backup or the promotion of an old standby a later lease may have the
-- same fence.
with asked as materialized (
    select cast(@term_ms as bigint) * interval '1 ms' as term, cast(@clock_at as timestamptz) as clock_at,
        statement_timestamp() as now,
        set_config('synchronous_commit', case when current_setting('synchronous_commit') in ('off', 'local')
            then 'on' else current_setting('synchronous_commit') end, true) as durable
)
update ids_workers w
set lease_expires_at = a.now + a.term,
    high_water_at = greatest(w.high_water_at, greatest(a.now, a.clock_at) + a.term)
from asked a
where w.worker = @worker and w.fence = @fence and w.leased_at = @leased_at and a.durable <> 'off'
returning w.high_water_at, a.now::timestamptz as now;

-- name: WorkerRelease :execrows
-- Ends a lease. The mark is set back to the latest time that was used, so that the number is free at once.
update ids_workers w
set lease_expires_at = c.now, high_water_at = @used_at
from (select statement_timestamp() as now) c
where w.worker = @worker and w.fence = @fence and w.leased_at = @leased_at;

-- name: WorkerSoonest :one
-- When the next number may become free, and the present time.
select min(greatest(lease_expires_at, high_water_at))::timestamptz as free_at, statement_timestamp()::timestamptz as now
from ids_workers;
