-- Limits as configured, and statements of the background task.

-- name: LimitLock :many
-- Locks a limit that is about to be changed.
select max_messages from notify_limits
where tenant_id = @tenant_id and channel = @channel and scope = @scope and window_s = @window_s
for no key update;

-- name: LimitInsert :execrows
-- Inserts a limit, unless the tenant has it.
insert into notify_limits (tenant_id, channel, scope, window_s, max_messages)
values (@tenant_id, @channel, @scope, @window_s, @max_messages)
on conflict do nothing;

-- name: LimitUpsert :exec
insert into notify_limits (tenant_id, channel, scope, window_s, max_messages)
values (@tenant_id, @channel, @scope, @window_s, @max_messages)
on conflict (tenant_id, channel, scope, window_s) do update set max_messages = excluded.max_messages;

-- name: LimitDelete :execrows
delete from notify_limits where tenant_id = @tenant_id and channel = @channel and scope = @scope
    and window_s = @window_s;

-- name: FingerprintClean :execrows
-- Deletes some fingerprints whose window has ended, skipping locked rows.
delete from notify_fingerprints
where ctid = any(array(
    select f.ctid from notify_fingerprints f
    where f.expires_at < now()
    order by f.expires_at
    limit @batch::integer
    for update skip locked
));

-- name: FingerprintOverdue :one
-- How long the window of the oldest fingerprint has been over, in seconds; 0: there is none.
select coalesce((
    select extract(epoch from clock_timestamp() - x.expires_at)
    from notify_fingerprints x where x.expires_at < now() order by x.expires_at limit 1
), 0)::double precision as seconds;

-- name: CounterClean :execrows
-- Deletes some counters whose events have all left the window, skipping locked rows.
delete from notify_counters
where ctid = any(array(
    select c.ctid from notify_counters c
    where c.expires_at < now()
    order by c.expires_at
    limit @batch::integer
    for update skip locked
));

-- name: CounterOverdue :one
-- How long the oldest counter has counted nothing, in seconds; 0: there is none.
select coalesce((
    select extract(epoch from clock_timestamp() - x.expires_at)
    from notify_counters x where x.expires_at < now() order by x.expires_at limit 1
), 0)::double precision as seconds;

-- name: ParkedClean :execrows
-- Deletes some dead and unknown messages from the queue whose contents were deleted 30 days ago, skipping locked
-- rows. They cannot be sent any more, and their events prove what became of them.
delete from notify_queue
where ctid = any(array(
    select q.ctid from notify_queue q
    where q.due_at is null and q.contents_until < (now() at time zone 'UTC')::date - 30
    order by q.contents_until
    limit @batch::integer
    for update skip locked
));

-- name: ParkedOverdue :one
-- How long the oldest of these has been due for deletion, in seconds; 0: there is none.
select coalesce((
    select extract(epoch from clock_timestamp() - (x.contents_until + 31)::timestamp at time zone 'UTC')
    from notify_queue x where x.due_at is null and x.contents_until < (now() at time zone 'UTC')::date - 30
        order by x.contents_until limit 1
), 0)::double precision as seconds;

-- name: PartitionsKeep :one
-- Creates future partitions, and drops one partition of contents if all its contents have expired.
select made::integer as made, dropped::integer as dropped, left_over::integer as left_over
    from notify_keep_partitions();

-- name: ProofsDrop :one
-- Drops one partition of messages and events older than a number of full months. Only the owner may.
select dropped::integer as dropped, left_over::integer as left_over from notify_drop_proofs(@months::integer);
