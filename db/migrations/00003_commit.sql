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
comment on index commit_batches_time_idx is 'Which runs of 65,536 numbers have a batch of a time, for commit_batch_before. ADR 9.';
comment on table commit_batches is 'One row for every committed batch: it settles a COMMIT whose answer was lost, and puts commits in order. Its key has no tenant: a batch serves many.';
comment on column commit_batches.batch_id is 'Number of the batch. Row ids are batch_id * 16384 + n, so every id tells its batch: id >> 14.';
comment on column commit_batches.nonce is 'Random number of the attempt that wrote the row: after a failover or a restore the same batch number may be given out twice.';
comment on column commit_batches.xid is 'The transaction, to read commits in an order that skips none: xid < pg_snapshot_xmin(pg_current_snapshot()).';
comment on column commit_batches.committed_at is 'Time of the batch: what recorded_at of its rows says.';
comment on column commit_batches.commands is 'How many commands it carried.';
comment on column commit_batches.instance is 'The process that ran it.';

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
comment on table commit_keys is 'Request keys with the answer that each got: the near-term replay cache. A key past expires_at counts as gone.';
comment on column commit_keys.tenant_id is 'Tenant.';
comment on column commit_keys.principal is 'Who called.';
comment on column commit_keys.operation is 'What was called, such as ledger.transfer.';
comment on column commit_keys.key is 'The Idempotency-Key; of an item of a batch with # and its place behind.';
comment on column commit_keys.refused is 'The answer is a business refusal.';
comment on column commit_keys.fingerprint is 'One byte of version and 16 of SHA-256 over the canonical request.';
comment on column commit_keys.answer is 'The recorded answer: protobuf bytes of the response, deflated behind a zero byte when there are many, or JSON of the refusal.';
comment on column commit_keys.request_id is 'X-Request-ID of the call that ran.';
comment on column commit_keys.created_at is 'When it ran.';
comment on column commit_keys.expires_at is 'End of its life.';

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
comment on function commit_expect is 'Fails the transaction when a pipelined statement did not touch as many rows as it had to: COMMIT follows in the same round trip, so nobody else could.';

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
comment on function commit_batch_before is 'Greatest number below another of a batch with a time in [start_at, end_at), 0 for none. Passes runs of 65,536 numbers that have no such time with one look into an index, and takes nothing for granted of how numbers and times go together.';

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
