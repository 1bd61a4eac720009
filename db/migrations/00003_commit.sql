-- The commit engine's own tables: one row for every batch committed, and the request keys.
-- Locks nothing.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
set local role ledgerd_owner;

create sequence commit_batch_seq as bigint increment by 1000;
comment on sequence commit_batch_seq is 'Batch numbers, fetched in blocks of 1,000 by every process.';

create table commit_batches (
    batch_id     bigint not null,
    nonce        bigint not null default 0,
    xid          xid8 not null default pg_current_xact_id(),
    committed_at timestamptz not null,
    commands     integer not null,
    instance     text collate "C" not null,
    constraint commit_batches_pkey primary key (batch_id)
);
create index commit_batches_order_idx on commit_batches (xid, batch_id);
create index commit_batches_time_idx on commit_batches ((batch_id >> 16), committed_at);
comment on index commit_batches_time_idx is 'For commit_batch_before: finds the ranges of 65,536 batch numbers that have a batch of a given time. ADR 9.';
comment on table commit_batches is 'One row per committed batch. It tells whether a COMMIT whose response was lost took place, and orders commits. The key has no tenant, because a batch has commands of many tenants.';
comment on column commit_batches.batch_id is 'Number of the batch. Row ids are batch_id * 16384 + n, so id >> 14 is the batch of a row.';
comment on column commit_batches.nonce is 'Random number of the attempt that wrote the row: after a failover or a restore a batch number may be used twice.';
comment on column commit_batches.xid is 'Transaction id. Readers of commits in order stop at pg_snapshot_xmin(pg_current_snapshot()), so that they skip none.';
comment on column commit_batches.committed_at is 'Time of the batch, and recorded_at of its rows.';
comment on column commit_batches.commands is 'Number of its commands.';
comment on column commit_batches.instance is 'Process that ran it.';

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
comment on table commit_keys is 'Request keys, each with the recorded answer that repeats get. A key past expires_at counts as deleted.';
comment on column commit_keys.tenant_id is 'Tenant.';
comment on column commit_keys.principal is 'Principal of the caller.';
comment on column commit_keys.operation is 'Operation that was called, such as ledger.transfer.';
comment on column commit_keys.key is 'The Idempotency-Key; for an item of a batch followed by # and the item''s index.';
comment on column commit_keys.refused is 'True if the answer is a business refusal.';
comment on column commit_keys.fingerprint is 'One byte of version and 16 of SHA-256 over the canonical request.';
comment on column commit_keys.answer is 'The recorded answer: the response in protobuf (a large one compressed by DEFLATE, after a zero byte), or the refusal in JSON.';
comment on column commit_keys.request_id is 'X-Request-ID of the call that ran.';
comment on column commit_keys.created_at is 'When the call ran.';
comment on column commit_keys.expires_at is 'When it expires.';

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
comment on function commit_expect is 'Fails the transaction when a pipelined statement touched another number of rows than expected. COMMIT follows in the same round trip, so only the database can check this.';

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
        -- In the order of its index, so that no other one seems as good for a first row.
        perform from commit_batches b
        where b.batch_id >> 16 = run and b.committed_at >= start_at and b.committed_at < end_at
        order by b.committed_at limit 1;
        if found then
            select b.batch_id into found_id from commit_batches b
            where b.batch_id >= run << 16 and b.batch_id <= below
                and b.committed_at >= start_at and b.committed_at < end_at and b.commands > 0
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
comment on function commit_batch_before is 'Greatest batch number below a given one whose batch has a time in [start_at, end_at); 0 for none. Skips ranges of 65,536 numbers without such a time by one index lookup each. Does not assume that times grow with numbers.';

create trigger commit_batches_append_only before update or delete or truncate on commit_batches
    for each statement execute function commit_append_only();

grant usage on sequence commit_batch_seq to ledgerd_app;
grant select, insert on commit_batches to ledgerd_app;
grant select, insert, delete on commit_keys to ledgerd_app;
grant update (refused, fingerprint, answer, request_id, created_at, expires_at) on commit_keys to ledgerd_app;
grant select on commit_batches, commit_keys to ledgerd_audit;
reset role;

-- +goose Down
drop table commit_keys;
drop table commit_batches;
drop function commit_expect;
drop function commit_append_only;
drop function commit_batch_before;
drop sequence commit_batch_seq;
