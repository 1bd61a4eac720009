-- The commit engine: batches, epochs of the database's history, request keys, and counts of how calls with keys ended.
-- Locks nothing.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
set local role ledgerd_owner;

-- +goose StatementBegin
create function commit_expect(actual bigint, expected bigint) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
    as $$
begin
    if actual is distinct from expected then
        raise exception 'a batch statement touched % rows, not %', actual, expected using errcode = 'LD001';
    end if;
end
$$;
-- +goose StatementEnd
comment on function commit_expect is
    'Fails the transaction when a pipelined statement touched another number of rows than expected. COMMIT follows '
    'in the same round trip, so only the database can check this.';

-- +goose StatementBegin
create function commit_append_only() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
    as $$
begin
    raise exception 'table % is append-only: % is refused', tg_table_name, lower(tg_op) using errcode = 'LD002';
end
$$;
-- +goose StatementEnd
comment on function commit_append_only is 'Trigger that refuses update, delete and truncate.';

-- +goose StatementBegin
create function commit_history() returns text
    language plpgsql -- caches its plan: a function in SQL is planned in every call
    stable
    set search_path from current
    as $$
begin
    return (select s.system_identifier || '/' || d.oid || '/' || to_regclass('commit_epochs')::oid
        from pg_catalog.pg_control_system() s, pg_catalog.pg_database d where d.datname = current_database());
end
$$;
-- +goose StatementEnd
comment on function commit_history is
    'The cluster''s system identifier, and the oids of the database and of commit_epochs. The oid of commit_epochs '
    'differs in a restored dump, even in a cluster with the same identifier; the oid of the database differs in a copy '
    'made from a template.';

-- +goose StatementBegin
create function commit_timeline() returns integer
    language plpgsql
    set search_path = pg_catalog, pg_temp
    as $$
begin
    if pg_is_in_recovery() then
        return (select c.timeline_id from pg_catalog.pg_control_checkpoint() c);
    end if;
    return ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer;
end
$$;
-- +goose StatementEnd
comment on function commit_timeline is
    'The timeline of the cluster. Each promotion of a standby, and each point-in-time recovery, starts a new one.';

create table commit_epochs (
    epoch    integer not null,
    nonce    text collate "C" not null default left(md5(gen_random_uuid()::text), 8),
    history  text collate "C" not null default commit_history(),
    timeline integer not null default commit_timeline(),
    begun_at timestamptz not null default clock_timestamp(),
    base     bigint not null,
    xid      xid not null default pg_current_xact_id()::xid,
    constraint commit_epochs_pkey primary key (epoch),
    constraint commit_epochs_base_check check (base >= 0 and base < 562949953421312)
);
comment on table commit_epochs is
    'One row per epoch of the database''s history. A restore into another cluster or database, and each promotion '
    'of a standby, begins a new epoch. No tenant: all tenants share the history.';
comment on column commit_epochs.epoch is
    'Number of the epoch. Commits of a later epoch come after those of an earlier one.';
comment on column commit_epochs.nonce is
    'Distinguishes the epoch from one with the same number in another copy of the database.';
comment on column commit_epochs.history is 'Result of commit_history.';
comment on column commit_epochs.timeline is 'Result of commit_timeline.';
comment on column commit_epochs.begun_at is 'When a server first noticed the epoch.';
comment on column commit_epochs.base is
    'Added to the numbers of sequences, so that the sums never decrease: at least 2^34 more than the base of the epoch '
    'before, plus a random number below 2^34. So copies of the database that diverged have different bases in epochs '
    'with the same number.';
comment on column commit_epochs.xid is
    'Transaction that wrote the row. The row of a database that was restored from a dump has another xmin.';

-- +goose StatementBegin
create function commit_begin_epoch() returns trigger
    language plpgsql
    set search_path from current
    as $$
declare
    last record;
begin
    if new.base is not null then -- restored from a dump
        new.xid := '0';
        return new;
    end if;
    select e.epoch, e.base into last from commit_epochs e where e.epoch < new.epoch order by e.epoch desc limit 1;
    new.base := coalesce(last.base, 0) + ((new.epoch - coalesce(last.epoch, 1))::bigint << 34);
    if new.epoch > 1 then -- not random(): setseed() makes it predictable
        new.base := new.base + (('x' || left(md5(gen_random_uuid()::text), 9))::bit(36)::bigint >> 2);
    end if;
    new.begun_at := clock_timestamp();
    return new;
end
$$;
-- +goose StatementEnd
comment on function commit_begin_epoch is
    'Chooses the base of a new epoch. A row that has a base comes from a restore of the data alone: a restore of a '
    'whole dump creates triggers last.';
create trigger commit_epochs_begin before insert on commit_epochs
    for each row execute function commit_begin_epoch();

-- +goose StatementBegin
create function commit_check_epoch() returns trigger
    language plpgsql
    set search_path from current
    as $$
begin
    if exists (select from commit_epochs e
        where e.epoch = new.epoch and e.xid = pg_current_xact_id()::xid and e.xmin <> e.xid) then
        raise exception 'an epoch cannot begin after a savepoint' using errcode = 'invalid_transaction_state';
    end if;
    return null;
end
$$;
-- +goose StatementEnd
comment on function commit_check_epoch is
    'Refuses a row that a subtransaction wrote: its xmin is that of the subtransaction, so it would count as restored.';
create trigger commit_epochs_check after insert on commit_epochs
    for each row execute function commit_check_epoch();

-- +goose StatementBegin
create function commit_epoch() returns integer
    language plpgsql
    set search_path from current
    as $$
declare
    last record;
    present integer;
begin
    select e.epoch, e.timeline, e.xmin = e.xid as written_here into last
    from commit_epochs e order by e.epoch desc limit 1;
    if not found then
        return commit_timeline();
    end if;
    if pg_is_in_recovery() then
        return last.epoch;
    end if;
    present := commit_timeline();
    if not last.written_here then
        return last.epoch + present;
    end if;
    return last.epoch + case when present < last.timeline then 1 else present - last.timeline end;
end
$$;
-- +goose StatementEnd
comment on function commit_epoch is
    'Number of the present epoch, even if no server has recorded it yet: each promotion since the last recorded one '
    'counts.';

-- +goose StatementBegin
create function commit_unrecorded_epoch() returns integer
    language plpgsql
    set search_path from current
    as $$
declare
    present integer := commit_epoch();
begin
    return present
        + (exists (select from commit_epochs e where e.epoch = present and e.history <> commit_history()))::integer;
end
$$;
-- +goose StatementEnd
comment on function commit_unrecorded_epoch is
    'Number of the present epoch, or of the next one if the database has been copied or upgraded file by file. Such '
    'copies are noticed only when a number is drawn or a server starts, because reading the identifier reads a file.';
alter table commit_epochs alter epoch set default commit_unrecorded_epoch();

-- +goose StatementBegin
create function commit_base() returns bigint
    language plpgsql
    set search_path from current
    as $$
declare
    last record;
begin
    if pg_is_in_recovery() then
        raise exception 'a standby has no numbers to give out' using errcode = 'read_only_sql_transaction';
    end if;
    select e.base, e.timeline, e.history, e.xmin = e.xid as written_here into last
    from commit_epochs e order by e.epoch desc limit 1;
    -- As commit_timeline, without the cost of a call.
    if found and last.written_here and last.history = commit_history()
        and last.timeline = ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer then
        return last.base;
    end if;
    raise exception 'epoch % is not recorded: insert into commit_epochs default values',
        commit_unrecorded_epoch() using errcode = 'LD006';
end
$$;
-- +goose StatementEnd
comment on function commit_base is
    'Base of the present epoch. Fails with LD006 if no server has recorded the epoch: every number must belong to a '
    'recorded epoch.';

-- commit_recorded_epoch runs in every batch.
-- +goose StatementBegin
create function commit_recorded_epoch() returns integer
    language plpgsql
    set search_path from current
    as $$
declare
    last record;
begin
    select e.epoch, e.timeline, e.xmin = e.xid as written_here into last
    from commit_epochs e order by e.epoch desc limit 1;
    -- As commit_timeline, without the cost of a call.
    if found and last.written_here
        and last.timeline = ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer then
        return last.epoch;
    end if;
    raise exception 'epoch % is not recorded: insert into commit_epochs default values', commit_epoch()
        using errcode = 'LD006';
end
$$;
-- +goose StatementEnd
comment on function commit_recorded_epoch is
    'Number of the present epoch. Fails with LD006 if no server has recorded it: after a restore, epochs are counted '
    'from the last recorded one, so an unrecorded number could be used twice. A batch does not record the epoch '
    'itself, because all other batches would wait for its end.';

create sequence commit_batch_seq as bigint increment by 1000;
comment on sequence commit_batch_seq is
    'Batch numbers, fetched in blocks of 1,000 by every process. The base of the epoch is added: see commit_base.';

create table commit_batches (
    batch_id     bigint not null,
    nonce        bigint not null default 0,
    xid          xid8 not null default pg_current_xact_id(),
    recorded_at timestamptz not null,
    commands     integer not null,
    instance     text collate "C" not null,
    epoch        integer not null default commit_recorded_epoch(),
    constraint commit_batches_pkey primary key (batch_id)
);
create index commit_batches_order_idx on commit_batches (epoch, xid, batch_id);
create index commit_batches_time_idx on commit_batches ((batch_id >> 16), recorded_at);
comment on index commit_batches_time_idx is
    'For commit_batch_before: finds the ranges of 65,536 batch numbers that have a batch of a given time. ADR 9.';
comment on table commit_batches is
    'One row per committed batch. It tells whether a COMMIT whose response was lost took place, and orders '
    'commits. The key has no tenant, because a batch has commands of many tenants.';
comment on column commit_batches.batch_id is
    'Number of the batch. Row ids are batch_id * 16384 + n, so id >> 14 is the batch of a row.';
comment on column commit_batches.nonce is
    'Random number of the attempt that wrote the row: if a disk snapshot is restored, a batch number may be used '
    'twice.';
comment on column commit_batches.xid is
    'Transaction id. Readers of commits in order stop at pg_snapshot_xmin(pg_current_snapshot()), so that they '
    'skip none.';
comment on column commit_batches.recorded_at is 'Time of the batch, and recorded_at of its rows.';
comment on column commit_batches.commands is 'Number of its commands.';
comment on column commit_batches.instance is 'Process that ran it.';
comment on column commit_batches.epoch is
    'Epoch of the commit. Transaction ids of different epochs cannot be compared.';

create table commit_keys (
    tenant_id   integer not null,
    principal   text collate "C" not null,
    operation   text collate "C" not null,
    key         text collate "C" not null,
    refused     boolean not null,
    fingerprint bytea not null,
    answer      bytea not null,
    request_id  text collate "C" not null,
    created_at  timestamptz not null,
    expires_at  timestamptz not null,
    constraint commit_keys_pkey primary key (tenant_id, principal, operation, key),
    constraint commit_keys_key_check check (octet_length(key) between 1 and 300),
    constraint commit_keys_fingerprint_check check (octet_length(fingerprint) = 17)
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);
create index commit_keys_expires_idx on commit_keys (expires_at);
comment on table commit_keys is
    'Request keys, each with the recorded answer that repeats get. A key past expires_at counts as deleted.';
comment on column commit_keys.tenant_id is 'Tenant.';
comment on column commit_keys.principal is 'Principal of the caller.';
comment on column commit_keys.operation is 'Operation that was called, such as ledger.transfer.';
comment on column commit_keys.key is 'The Idempotency-Key; for an item of a batch followed by # and the item''s index.';
comment on column commit_keys.refused is 'True if the answer is a business refusal.';
comment on column commit_keys.fingerprint is 'One byte of version and 16 of SHA-256 over the canonical request.';
comment on column commit_keys.answer is
    'The recorded answer: the response in protobuf (a large one compressed by DEFLATE, after a zero byte), or the '
    'refusal in JSON.';
comment on column commit_keys.request_id is 'X-Request-ID of the call that ran.';
comment on column commit_keys.created_at is 'When the call ran.';
comment on column commit_keys.expires_at is 'When it expires.';

-- +goose StatementBegin
create function commit_batch_before(below bigint, start_at timestamptz, end_at timestamptz) returns bigint
    language plpgsql
    stable
    set search_path from current
    as $$
declare
    run bigint;
    found_id bigint;
begin
    loop
        select b.batch_id into below from commit_batches b where b.batch_id < below order by b.batch_id desc limit 1;
        if not found then
            return 0;
        end if;
        run := below >> 16;
        -- Ordered as commit_batches_time_idx, or the planner may use another index to find one row.
        perform from commit_batches b
        where b.batch_id >> 16 = run and b.recorded_at >= start_at and b.recorded_at < end_at
        order by b.recorded_at limit 1;
        if found then
            select b.batch_id into found_id from commit_batches b
            where b.batch_id >= run << 16 and b.batch_id <= below
                and b.recorded_at >= start_at and b.recorded_at < end_at and b.commands > 0
            order by b.batch_id desc limit 1;
            if found then
                return found_id;
            end if;
        end if;
        below := run << 16;
    end loop;
end
$$;
-- +goose StatementEnd
comment on function commit_batch_before is
    'Greatest batch number below a given one whose batch has a time in [start_at, end_at); 0 for none. Skips '
    'ranges of 65,536 numbers without such a time by one index lookup each. Does not assume that times grow with '
    'numbers.';

-- +goose StatementBegin
create function commit_time_taken(batch bigint, at timestamptz) returns boolean
    language plpgsql
    stable
    set search_path from current
    as $$
declare
    below bigint := batch >> 16;
    above bigint := (batch >> 16) + 1;
    run bigint;
    taken boolean;
begin
    for tries in 0 .. 100 loop
        for run in select unnest(array[below, above]) loop
            -- Ordered as commit_batches_time_idx, or the planner may read all batches: many can have this time.
            select b.recorded_at = at into taken from commit_batches b
            where b.batch_id >> 16 = run and b.recorded_at >= at and b.batch_id <> batch and b.commands > 0
            order by b.recorded_at limit 1;
            if taken then
                return true;
            end if;
        end loop;
        select (select b.batch_id >> 16 from commit_batches b where b.batch_id < below << 16
                order by b.batch_id desc limit 1),
            (select b.batch_id >> 16 from commit_batches b where b.batch_id >= (above + 1) << 16
                order by b.batch_id limit 1)
        into below, above;
        exit when below is null and above is null;
    end loop;
    return false;
end
$$;
-- +goose StatementEnd
comment on function commit_time_taken is
    'True if another batch has the same time. An account that is ahead of the clock gives its time to all batches that '
    'change it. Searches some 6.5 million batch numbers in each direction, also of other epochs: a server uses a '
    'number within an hour of fetching it.';

create trigger commit_batches_append_only before update or delete or truncate on commit_batches
    for each statement execute function commit_append_only();

grant usage on sequence commit_batch_seq to ledgerd_app;
grant select, insert on commit_batches to ledgerd_app;
grant select, insert, delete on commit_keys to ledgerd_app;
grant update (refused, fingerprint, answer, request_id, created_at, expires_at) on commit_keys to ledgerd_app;
grant select on commit_batches to ledgerd_audit;
-- Without the answers, which may contain tokens, and the fingerprints of requests, from which personal data could be
-- guessed.
grant select (tenant_id, principal, operation, key, refused, request_id, created_at, expires_at)
    on commit_keys to ledgerd_audit;

create trigger commit_epochs_append_only before update or delete or truncate on commit_epochs
    for each statement execute function commit_append_only();
grant select on commit_epochs to ledgerd_app;
-- Defaults and triggers set all columns: a login can record only an epoch that Postgres has begun.
grant insert (begun_at) on commit_epochs to ledgerd_app;
grant select on commit_epochs to ledgerd_audit;

create table commit_counts (
    tenant_id integer not null,
    operation text collate "C" not null,
    outcome   text collate "C" not null,
    hour      timestamptz not null,
    count     bigint not null,
    constraint commit_counts_pkey primary key (tenant_id, operation, outcome, hour),
    constraint commit_counts_outcome_check check (octet_length(outcome) between 1 and 32),
    constraint commit_counts_hour_check check (extract(epoch from hour)::bigint % 3600 = 0),
    constraint commit_counts_count_check check (count > 0)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
create index commit_counts_hour_idx on commit_counts (hour);
comment on table commit_counts is
    'Outcomes of calls with a request key, counted by hour and kept for 90 days. A process adds its counts every '
    'ten seconds, so the last ten seconds of a killed process are missing.';
comment on column commit_counts.tenant_id is 'Tenant.';
comment on column commit_counts.operation is 'Operation that was called, such as ledger.transfer.';
comment on column commit_counts.outcome is
    'first: the call ran, and its answer was recorded; refused: a business rule refused it, which was recorded; '
    'replayed: it got the recorded answer; mismatch: the key was used before with other content; expired: it ran '
    'again, because the key had expired; taken_over: it took over an expired lease.';
comment on column commit_counts.hour is 'Start of the hour, by the database''s clock when the count was added.';
comment on column commit_counts.count is 'Number of calls.';
grant select, insert, delete on commit_counts to ledgerd_app;
grant update (count) on commit_counts to ledgerd_app;
grant select on commit_counts to ledgerd_audit;

create view audit.key_outcomes as
select t.name as tenant, c.operation, c.hour,
    coalesce(sum(c.count) filter (where c.outcome = 'first'), 0) as first,
    coalesce(sum(c.count) filter (where c.outcome = 'refused'), 0) as refused,
    coalesce(sum(c.count) filter (where c.outcome = 'replayed'), 0) as replayed,
    coalesce(sum(c.count) filter (where c.outcome = 'mismatch'), 0) as mismatched,
    coalesce(sum(c.count) filter (where c.outcome = 'expired'), 0) as expired,
    coalesce(sum(c.count) filter (where c.outcome = 'taken_over'), 0) as taken_over,
    round(coalesce(sum(c.count) filter (where c.outcome = 'replayed')
        / sum(c.count) filter (where c.outcome <> 'taken_over'), 0), 4) as hit_rate
from commit_counts c
left join access_tenants t on t.tenant_id = c.tenant_id
group by c.tenant_id, t.name, c.operation, c.hour;
comment on view audit.key_outcomes is
    'Outcomes of calls with a request key, and of work under a lease, by operation and hour.';
comment on column audit.key_outcomes.tenant is 'Name of the tenant.';
comment on column audit.key_outcomes.operation is 'Operation that was called.';
comment on column audit.key_outcomes.hour is 'Start of the hour.';
comment on column audit.key_outcomes.first is 'Calls that ran, and whose answer was recorded.';
comment on column audit.key_outcomes.refused is 'Calls that a business rule refused, which was recorded.';
comment on column audit.key_outcomes.replayed is 'Calls that got a recorded answer.';
comment on column audit.key_outcomes.mismatched is 'Calls whose key was used before with other content.';
comment on column audit.key_outcomes.expired is
    'Calls that ran again, because their key had expired. If there are many, give keys a longer life.';
comment on column audit.key_outcomes.taken_over is 'Calls that took over an expired lease.';
comment on column audit.key_outcomes.hit_rate is 'Share of the calls with a request key that were replayed, 0 to 1.';
grant select on audit.key_outcomes to ledgerd_audit;

create view audit.request_keys as
select t.name as tenant, k.principal, k.operation, k.key, k.refused,
    case when k.refused then convert_from(k.answer, 'UTF8')::jsonb ->> 'reason' end as reason,
    k.request_id, k.created_at, k.expires_at, k.expires_at <= now() as expired, octet_length(k.answer) as answer_bytes
from commit_keys k
left join access_tenants t on t.tenant_id = k.tenant_id;
comment on view audit.request_keys is
    'Request keys, without their answers. Replays write nothing: metrics and the log count them.';
comment on column audit.request_keys.tenant is 'Name of the tenant.';
comment on column audit.request_keys.principal is 'Principal of the caller.';
comment on column audit.request_keys.operation is 'Operation that was called, such as ledger.transfer.';
comment on column audit.request_keys.key is 'The Idempotency-Key.';
comment on column audit.request_keys.refused is 'True if the answer is a business refusal.';
comment on column audit.request_keys.reason is 'Reason of the refusal.';
comment on column audit.request_keys.request_id is 'X-Request-ID of the call that ran.';
comment on column audit.request_keys.created_at is 'When the call ran.';
comment on column audit.request_keys.expires_at is 'When it expires.';
comment on column audit.request_keys.expired is 'True if it has expired and counts as deleted.';
comment on column audit.request_keys.answer_bytes is 'Size of the recorded answer.';

create view audit.request_key_usage as
select t.name as tenant, k.operation, count(*) as keys,
    count(*) filter (where k.refused) as refused,
    count(*) filter (where k.expires_at <= now()) as expired,
    sum(octet_length(k.answer)) as answer_bytes, min(k.created_at) as oldest_at, max(k.created_at) as newest_at
from commit_keys k
left join access_tenants t on t.tenant_id = k.tenant_id
group by k.tenant_id, t.name, k.operation;
comment on view audit.request_key_usage is 'Request keys counted by operation.';
comment on column audit.request_key_usage.tenant is 'Name of the tenant.';
comment on column audit.request_key_usage.operation is 'Operation that was called.';
comment on column audit.request_key_usage.keys is 'How many keys are recorded.';
comment on column audit.request_key_usage.refused is 'Number of them whose answer is a refusal.';
comment on column audit.request_key_usage.expired is 'Number of them that have expired and are not deleted yet.';
comment on column audit.request_key_usage.answer_bytes is 'Total size of their answers.';
comment on column audit.request_key_usage.oldest_at is 'When the call of the oldest key ran.';
comment on column audit.request_key_usage.newest_at is 'When the call of the newest key ran.';

create view audit.batches as
select b.batch_id, b.recorded_at, b.commands, b.commands = 0 as void, b.instance, b.xid
from commit_batches b;
comment on view audit.batches is 'Batches that the service committed. id >> 14 of a row is its batch.';
comment on column audit.batches.batch_id is 'Number of the batch.';
comment on column audit.batches.recorded_at is 'Time of the batch, and recorded_at of its rows.';
comment on column audit.batches.commands is 'Number of its commands.';
comment on column audit.batches.void is
    'True for a batch without rows, written to settle a COMMIT that did not take place, or to test whether commits '
    'are durable.';
comment on column audit.batches.instance is 'Process that ran it.';
comment on column audit.batches.xid is 'Transaction id.';

grant select on audit.request_keys, audit.request_key_usage, audit.batches to ledgerd_audit;
reset role;

-- +goose Down
drop view audit.batches;
drop view audit.request_key_usage;
drop view audit.request_keys;
drop view audit.key_outcomes;
drop table commit_counts;
drop table commit_keys;
drop table commit_batches;
drop table commit_epochs;
drop function commit_recorded_epoch;
drop function commit_base;
drop function commit_unrecorded_epoch;
drop function commit_epoch;
drop function commit_check_epoch;
drop function commit_begin_epoch;
drop function commit_timeline;
drop function commit_history;
drop function commit_time_taken;
drop function commit_batch_before;
drop function commit_expect;
drop function commit_append_only;
drop sequence commit_batch_seq;
