-- Leases of worker numbers. Each is one statement and a transaction of its own, so that a process that
-- is stopped in the middle holds no lock. Its COMMIT waits for the disk, and for the synchronous standby
-- if there is one, whatever the settings of the role say: a lease or a mark that could be lost is none.
-- Time is statement_timestamp(), which is between the moments in which the process asked and was answered.

-- name: WorkerLease :one
-- Takes a free number: one of those whose lease is over and whose mark is past. Any of them, so that
-- after the loss of a lease (a standby that was not synchronous was promoted) the same number is hardly
-- ever given out again while its holder still uses it.
with asked as materialized (
    select cast(@term_ms as bigint) * interval '1 ms' as term, cast(@clock_at as timestamptz) as clock_at, cast(@holder as text) as holder,
        set_config('synchronous_commit', case when current_setting('synchronous_commit') in ('off', 'local')
            then 'on' else current_setting('synchronous_commit') end, true) as durable
), free as (
    select w.worker, w.high_water_at as floor_at
    from ids_workers w
    where w.leased_until <= statement_timestamp() and w.high_water_at <= statement_timestamp()
    order by random()
    limit 1
    for no key update skip locked
)
update ids_workers w
set fence = w.fence + 1, holder = a.holder, leased_at = statement_timestamp(), leased_until = statement_timestamp() + a.term,
    high_water_at = greatest(statement_timestamp(), a.clock_at) + a.term
from free f, asked a
where w.worker = f.worker and a.durable <> 'off'
returning w.worker, w.fence, f.floor_at, w.high_water_at, w.leased_at as now;

-- name: WorkerRenew :one
-- Lengthens a lease, and moves its mark on. No row: another one has the number. A lease is known by its
-- time as well as its fence: when a backup or an old standby took the database's place, the fence counts
-- on from there, and could meet itself.
with asked as materialized (
    select cast(@term_ms as bigint) * interval '1 ms' as term, cast(@clock_at as timestamptz) as clock_at,
        set_config('synchronous_commit', case when current_setting('synchronous_commit') in ('off', 'local')
            then 'on' else current_setting('synchronous_commit') end, true) as durable
)
update ids_workers w
set leased_until = statement_timestamp() + a.term,
    high_water_at = greatest(w.high_water_at, greatest(statement_timestamp(), a.clock_at) + a.term)
from asked a
where w.worker = @worker and w.fence = @fence and w.leased_at = @leased_at and a.durable <> 'off'
returning w.high_water_at, statement_timestamp()::timestamptz as now;

-- name: WorkerRelease :execrows
-- Ends a lease. The mark goes back to what was given out, so that the number is free at once.
update ids_workers
set leased_until = statement_timestamp(), high_water_at = @used_at
where worker = @worker and fence = @fence and leased_at = @leased_at;

-- name: WorkerSoonest :one
-- When the next number may become free, with the time now.
select min(greatest(leased_until, high_water_at))::timestamptz as free_at, statement_timestamp()::timestamptz as now
from ids_workers;
