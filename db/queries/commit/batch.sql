-- Statements of the commit engine. The tenant is passed in an array and the index is reached by a lateral sub-select,
-- so that a generic plan made on an empty table stays right on a full one.

-- name: SettingsApply :exec
-- Settings for one transaction, not for the session, so that they also hold behind a pooler. No lock is taken before
-- lock_timeout is set. Plans are generic: planning every batch for its arrays would cost more than it could save.
select set_config('ledgerd.tenants', @tenants::text, true), set_config('lock_timeout', @lock_timeout::text, true),
    set_config('statement_timeout', @statement_timeout::text, true),
    set_config('idle_in_transaction_session_timeout', @idle_timeout::text, true),
    set_config('client_connection_check_interval', '5s', true),
    set_config('synchronous_commit', case when current_setting('synchronous_commit') in ('off', 'local') then 'on'
    else current_setting('synchronous_commit') end, true),
    set_config('client_min_messages', 'warning', true), -- COMMIT warns if it did not wait for a standby
    set_config('enable_seqscan', 'off', true),
    set_config('enable_hashjoin', 'off', true),
    set_config('enable_mergejoin', 'off', true),
    set_config('plan_cache_mode', 'force_generic_plan', true),
    set_config('jit', 'off', true);

-- name: BatchEnter :exec
-- The lock that BatchesOpen looks for, taken before the transaction reads the clock. It is a lock on a table, because
-- every login of the database could take an advisory lock; this one requires the right to insert.
lock table commit_batches in row exclusive mode;

-- name: LockTimeoutApply :exec
-- Sets the lock timeout for the rest of the transaction.
select set_config('lock_timeout', @lock_timeout::text, true);

-- name: ClockRead :one
-- Time of the batch. It is read after the rows of the batch are locked or, in an optimistic batch, after they are read
-- or taken over from an earlier batch.
select clock_timestamp()::timestamptz as now;

-- name: BatchesOpen :many
-- Batches in progress, of all processes on this database.
select virtualtransaction::text from pg_locks
where locktype = 'relation' and relation = 'commit_batches'::regclass and mode = 'RowExclusiveLock' and granted
    and database = (select oid from pg_database where datname = current_database());

-- name: BatchBlock :one
-- First number of a block of 1,000 batch numbers. If the database loses its last commits, the sequence goes back: then
-- the base of the new epoch prevents a number from being used twice.
select (commit_base() + nextval('commit_batch_seq'))::bigint as first;

-- name: DurabilityRaise :exec
-- Makes a transaction as durable as a batch, whatever default the role or the database has. If its process dies, the
-- transaction ends soon, because others may wait for its rows.
select set_config('synchronous_commit', case when current_setting('synchronous_commit') in ('off', 'local')
    then 'on' else current_setting('synchronous_commit') end, true), set_config('client_min_messages', 'warning', true),
    set_config('idle_in_transaction_session_timeout', '5s', true);

-- name: BatchInsert :one
-- Last statement of a batch before COMMIT. Returns the transaction id.
insert into commit_batches (batch_id, nonce, recorded_at, commands, instance)
values (@batch_id, @nonce, @recorded_at, @commands, @instance)
returning xmin;

-- name: BatchWitness :execrows
-- The row of a batch that wrote nothing, if there are synchronous standbys: its commands may have read rows that are
-- visible here but not yet flushed by a standby. A COMMIT that waits for its own row also waits for all rows before it.
insert into commit_batches (batch_id, nonce, recorded_at, commands, instance)
select @batch_id, @nonce, @recorded_at, @commands, @instance
where current_setting('synchronous_standby_names') <> '';

-- name: CommitRelax :exec
-- Last statement before COMMIT of a batch that wrote nothing, after BatchWitness. Without synchronous standbys the
-- COMMIT need not wait for the disk: the batch wrote nothing, and rows of other batches were flushed before they were
-- visible.
select set_config('synchronous_commit', 'off', true) where current_setting('synchronous_standby_names') = '';

-- name: BatchVoid :exec
-- Settles a batch whose COMMIT got no response: inserts a row without commands under its number. Waits for the other
-- transaction if it is still in progress.
insert into commit_batches (batch_id, nonce, recorded_at, commands, instance)
values (@batch_id, @nonce, clock_timestamp(), 0, @instance)
on conflict (batch_id) do nothing;

-- name: BatchOutcome :one
-- The row under the number of a batch, after BatchVoid. If the row has commands and the nonce of the attempt, the
-- attempt committed. Otherwise the attempt can never commit, because its own row would violate the primary key.
select commands, nonce from commit_batches where batch_id = @batch_id;

-- name: KeyLookup :many
-- Answers recorded under the request keys of a batch. n is the position in the arrays, from 1.
select u.n::integer as n, k.refused, k.fingerprint, k.answer, k.request_id, k.created_at, k.expires_at
from (
    select generate_subscripts(@keys::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@principals::text[]) as principal, unnest(@operations::text[]) as operation,
        unnest(@keys::text[]) as key
) u
cross join lateral (
    select c.refused, c.fingerprint, c.answer, c.request_id, c.created_at, c.expires_at
    from commit_keys c
    where c.tenant_id = u.tenant_id and c.principal = u.principal and c.operation = u.operation and c.key = u.key
    offset 0
) k;

-- name: KeyInsert :exec
-- Records answers under new keys. All processes insert in the same order.
insert into commit_keys (tenant_id, principal, operation, key, refused, fingerprint, answer, request_id, created_at,
    expires_at)
select u.tenant_id, u.principal, u.operation, u.key, u.refused, u.fingerprint, u.answer, u.request_id,
    @now::timestamptz, u.expires_at
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@principals::text[]) as principal,
        unnest(@operations::text[]) as operation, unnest(@keys::text[]) as key,
        unnest(@refused::boolean[]) as refused, unnest(@fingerprints::bytea[]) as fingerprint,
        unnest(@answers::bytea[]) as answer, unnest(@request_ids::text[]) as request_id,
        unnest(@expires_at::timestamptz[]) as expires_at
) u
order by u.tenant_id, u.principal collate "C", u.operation collate "C", u.key collate "C";

-- name: KeyRenew :exec
-- Records answers under expired keys whose row is still there. Fails if another transaction renewed or deleted one of
-- them meanwhile.
with renewed as (
    update commit_keys c
    set refused = y.refused, fingerprint = y.fingerprint, answer = y.answer, request_id = y.request_id,
        created_at = @now::timestamptz, expires_at = y.expires_at
    from (
        select l.ctid as tid, u.refused, u.fingerprint, u.answer, u.request_id, u.expires_at
        from (
            select unnest(@tenants::integer[]) as tenant_id, unnest(@principals::text[]) as principal,
                unnest(@operations::text[]) as operation, unnest(@keys::text[]) as key,
                unnest(@refused::boolean[]) as refused, unnest(@fingerprints::bytea[]) as fingerprint,
                unnest(@answers::bytea[]) as answer, unnest(@request_ids::text[]) as request_id,
                unnest(@expires_at::timestamptz[]) as expires_at, unnest(@seen::timestamptz[]) as seen
        ) u
        cross join lateral (
            select k.ctid from commit_keys k
            where k.tenant_id = u.tenant_id and k.principal = u.principal and k.operation = u.operation
                and k.key = u.key and k.expires_at = u.seen
            offset 0
        ) l
    ) y
    where c.ctid = y.tid
    returning 1
)
select commit_expect(count(*), cardinality(@keys::text[])) from renewed;

-- name: KeyClean :execrows
-- Deletes some expired keys, oldest first, skipping locked rows. Uses now(), because clock_timestamp() cannot be an
-- index condition: all live keys would be read.
delete from commit_keys
where ctid = any(array(
    select k.ctid from commit_keys k
    where k.expires_at < now()
    order by k.expires_at
    limit @batch::integer
    for update skip locked
));

-- name: KeyOverdue :one
-- Age of the oldest expired key that is still there, in seconds; 0: there is none.
select coalesce((
    select extract(epoch from clock_timestamp() - k.expires_at)
    from commit_keys k where k.expires_at < now() order by k.expires_at limit 1
), 0)::double precision as seconds;
