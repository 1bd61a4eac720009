-- Epochs of the database's history, so that commits stay in order, and cursors tell when theirs ended: after a
-- restore transactions have smaller numbers than rows that are there, after a failover commits may be gone.
-- Rewrites commit_batches.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
set local role ledgerd_owner;

-- These two run in every batch.
-- +goose StatementBegin
create function commit_history() returns text
    language plpgsql
    set search_path = pg_catalog, pg_temp
    as $$
declare
    known text := current_setting('ledgerd.history', true);
begin
    if known <> '' then
        return known;
    end if;
    return (
        select set_config('ledgerd.history', s.system_identifier || '/' || d.oid, false)
        from pg_catalog.pg_control_system() s, pg_catalog.pg_database d where d.datname = current_database()
    );
end
$$;
-- +goose StatementEnd
comment on function commit_history is 'The cluster''s system identifier and the database''s oid. Neither changes during a session, so the session caches both: the first is read from a file.';

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
comment on function commit_timeline is 'The timeline of the cluster. Each promotion of a standby, and each point-in-time recovery, starts a new one.';

create table commit_epochs (
    epoch    integer not null,
    nonce    text collate "C" not null default left(md5(gen_random_uuid()::text), 8),
    history  text collate "C" not null default commit_history(),
    timeline integer not null default commit_timeline(),
    began_at timestamptz not null default clock_timestamp(),
    constraint commit_epochs_pkey primary key (epoch)
);
comment on table commit_epochs is 'One row per epoch of the database''s history. A restore into another cluster or database, and each promotion of a standby, begins a new epoch. No tenant: all tenants share the history.';
comment on column commit_epochs.epoch is 'Number of the epoch. Commits of a later epoch come after those of an earlier one.';
comment on column commit_epochs.nonce is 'Distinguishes the epoch from one with the same number in another copy of the database.';
comment on column commit_epochs.history is 'Result of commit_history.';
comment on column commit_epochs.timeline is 'Result of commit_timeline.';
comment on column commit_epochs.began_at is 'When a server first noticed the epoch.';

-- +goose StatementBegin
create function commit_epoch() returns integer
    language plpgsql
    set search_path from current
    as $$
declare
    last record;
begin
    select e.epoch, e.history, e.timeline into last from commit_epochs e order by e.epoch desc limit 1;
    if not found then
        return 1;
    end if;
    if pg_is_in_recovery() or (last.history = commit_history() and last.timeline = commit_timeline()) then
        return last.epoch;
    end if;
    return last.epoch + 1;
end
$$;
-- +goose StatementEnd
comment on function commit_epoch is 'Number of the present epoch, even if no server has recorded it yet: the last recorded one, or the next if history or timeline have changed.';

alter table commit_batches add column epoch integer not null default commit_epoch();
comment on column commit_batches.epoch is 'Epoch of the commit. Transaction ids of different epochs cannot be compared.';
drop index commit_batches_order_idx;
create index commit_batches_order_idx on commit_batches (epoch, xid, batch_id);

create trigger commit_epochs_append_only before update or delete or truncate on commit_epochs
    for each statement execute function commit_append_only();
grant select, insert on commit_epochs to ledgerd_app;
grant select on commit_epochs to ledgerd_audit;
reset role;

-- +goose Down
alter table commit_batches drop column epoch; -- and the index
create index commit_batches_order_idx on commit_batches (xid, batch_id);
drop table commit_epochs;
drop function commit_epoch;
drop function commit_timeline;
drop function commit_history;
