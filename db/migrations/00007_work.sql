-- Work that callers do once in their own systems: the lease of its holder, and its answer. Locks nothing.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
set local role ledgerd_owner;

create sequence work_fence_seq as bigint;
comment on sequence work_fence_seq is
    'Fences. A fence is drawn while the row of its key is locked, so that the fences of a key grow, also after the '
    'cleaner deleted the row. The cache must be 1: cached numbers would be out of order. The base of the epoch '
    'is added: see commit_base.';

create table work_records (
    tenant_id          integer not null,
    scope              text collate "C" not null,
    key                text collate "C" not null,
    fingerprint        bytea,
    state              text collate "C" not null,
    fence              bigint not null,
    attempt            integer not null,
    lease_ms           bigint not null,
    lease_expires_at        timestamptz,
    park_lapsed        boolean not null,
    life_ms            bigint not null,
    principal          text collate "C" not null,
    request_id         text collate "C" not null,
    first_request_id   text collate "C" not null,
    created_at         timestamptz not null,
    begun_at           timestamptz not null,
    settled_at         timestamptz,
    settled_by         text collate "C",
    settled_request_id text collate "C",
    status             integer,
    headers            jsonb,
    body               bytea,
    body_compressed    boolean not null default false,
    body_bytes         integer,
    answer_hash        bytea,
    expires_at         timestamptz,
    constraint work_records_pkey primary key (tenant_id, scope, key),
    constraint work_records_scope_check check (octet_length(scope) between 1 and 128),
    constraint work_records_key_check check (octet_length(key) between 1 and 512),
    constraint work_records_fingerprint_check check (octet_length(fingerprint) <= 64),
    constraint work_records_state_check check (state in ('running', 'done', 'refused', 'parked', 'free')),
    constraint work_records_fence_check check (fence > 0),
    constraint work_records_attempt_check check (attempt > 0),
    constraint work_records_lease_check check ((state = 'running') = (lease_expires_at is not null) and lease_ms > 0),
    constraint work_records_life_check check (life_ms > 0),
    constraint work_records_settled_check check ((state = 'running') = (settled_at is null)
        and (settled_at is null) = (settled_by is null) and (settled_at is null) = (settled_request_id is null)),
    constraint work_records_answer_check check ((state in ('done', 'refused', 'parked')) = (answer_hash is not null)
        and (answer_hash is null) = (status is null) and (answer_hash is null) = (headers is null)
        and (answer_hash is null) = (body is null) and (answer_hash is null) = (body_bytes is null)),
    constraint work_records_body_check check (body_bytes <= 1048576 and octet_length(body) <= 1049600),
    constraint work_records_headers_check check (octet_length(headers::text) <= 524288),
    constraint work_records_expires_check check (
        (expires_at is null) = (state = 'parked' or state = 'running' and park_lapsed))
) with (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
create index work_records_open_idx on work_records (tenant_id, state, scope, key) where state in ('running', 'parked');
comment on index work_records_open_idx is 'For lists of work that is running or parked, a small part of all rows.';
create index work_records_expires_idx on work_records (expires_at) where expires_at is not null;
comment on index work_records_expires_idx is 'For the cleaner.';
alter table work_records alter column body set storage external;
comment on table work_records is
    'Work that callers do in their own systems: the present holder and fence, and the answer. A row past '
    'expires_at counts as deleted.';
comment on column work_records.tenant_id is 'Tenant.';
comment on column work_records.scope is 'Kind of work, as the caller names it: keys are unique in it.';
comment on column work_records.key is 'The caller''s name for the work.';
comment on column work_records.fingerprint is
    'Fingerprint of the content, as the caller gave it; null: Abandon cleared it, and the next Begin may have '
    'any.';
comment on column work_records.state is
    'running: a caller holds it, or held it until lease_expires_at; done, refused: it ended with an answer; parked: '
    'its outcome is unknown; free: the next caller may run it.';
comment on column work_records.fence is
    'Fence of the present attempt. Grows with every attempt, and is never reused for a key. Every later write must '
    'name it.';
comment on column work_records.attempt is 'Number of the attempt, from 1.';
comment on column work_records.lease_ms is 'Length of the lease, in milliseconds.';
comment on column work_records.lease_expires_at is 'End of the holder''s lease; null: it has no holder.';
comment on column work_records.park_lapsed is
    'True if the work is parked when its lease expires: its outcome is unknown then, and no caller may run it again.';
comment on column work_records.life_ms is
    'How long the row is kept, in milliseconds, from the begin of the attempt, and again from its settlement.';
comment on column work_records.principal is 'Principal that began the attempt.';
comment on column work_records.request_id is 'X-Request-ID of the call that began the attempt.';
comment on column work_records.first_request_id is 'X-Request-ID of the call that began the first attempt.';
comment on column work_records.created_at is 'When the first attempt began.';
comment on column work_records.begun_at is 'When the attempt began.';
comment on column work_records.settled_at is 'When it got its present state; null while it runs.';
comment on column work_records.settled_by is 'Principal that settled it.';
comment on column work_records.settled_request_id is 'X-Request-ID of the call that settled it.';
comment on column work_records.status is 'Status of the answer, such as an HTTP status.';
comment on column work_records.headers is 'Headers of the answer: a list of name and value.';
comment on column work_records.body is 'Body of the answer, compressed if body_compressed.';
comment on column work_records.body_compressed is 'The body is compressed by DEFLATE (RFC 1951).';
comment on column work_records.body_bytes is 'Size of the body as it was sent.';
comment on column work_records.answer_hash is 'SHA-256 of state and answer, to recognise a repeated Complete.';
comment on column work_records.expires_at is 'When it expires; null: never, while it is parked or may become parked.';

create view audit.works as
select t.name as tenant, w.scope, w.key,
    case when w.state = 'running' and w.lease_expires_at <= now()
        then case when w.park_lapsed then 'parked' else 'lapsed' end else w.state end as state,
    w.fence, w.attempt, w.lease_expires_at, w.park_lapsed, w.principal, w.request_id, w.first_request_id,
    w.created_at, w.begun_at, w.settled_at, w.settled_by,
    w.settled_request_id, w.status, w.body_bytes, encode(w.answer_hash, 'hex') as answer_sha256, w.expires_at,
    coalesce(w.expires_at <= now(), false) as expired
from work_records w
left join access_tenants t on t.tenant_id = w.tenant_id;
comment on view audit.works is
    'Work that callers do in their own systems, without their answers. Parked work waits for an operator.';
comment on column audit.works.tenant is 'Name of the tenant.';
comment on column audit.works.scope is 'Kind of work.';
comment on column audit.works.key is 'The caller''s name for the work.';
comment on column audit.works.state is
    'running, lapsed (the lease expired, and the next caller may run it), done, refused, parked or free.';
comment on column audit.works.fence is 'Fence of the present attempt.';
comment on column audit.works.attempt is 'Number of the attempt, from 1.';
comment on column audit.works.lease_expires_at is 'End of the holder''s lease.';
comment on column audit.works.park_lapsed is 'True if it is parked when its lease expires.';
comment on column audit.works.principal is 'Principal that began the attempt.';
comment on column audit.works.request_id is 'X-Request-ID of the call that began the attempt.';
comment on column audit.works.first_request_id is 'X-Request-ID of the call that began the first attempt.';
comment on column audit.works.created_at is 'When the first attempt began.';
comment on column audit.works.begun_at is 'When the attempt began.';
comment on column audit.works.settled_at is 'When it got its present state.';
comment on column audit.works.settled_by is 'Principal that settled it.';
comment on column audit.works.settled_request_id is 'X-Request-ID of the call that settled it.';
comment on column audit.works.status is 'Status of the answer.';
comment on column audit.works.body_bytes is 'Size of the answer''s body.';
comment on column audit.works.answer_sha256 is 'SHA-256 of state and answer.';
comment on column audit.works.expires_at is 'When it expires.';
comment on column audit.works.expired is 'True if it has expired and counts as deleted.';

grant usage, select on sequence work_fence_seq to ledgerd_app;
grant select on sequence work_fence_seq to ledgerd_audit;
grant select, insert, delete on work_records to ledgerd_app;
grant update (fingerprint, state, fence, attempt, lease_ms, lease_expires_at, park_lapsed, life_ms, principal,
    request_id, first_request_id, created_at, begun_at, settled_at, settled_by, settled_request_id, status, headers,
    body, body_compressed, body_bytes, answer_hash, expires_at) on work_records to ledgerd_app;
-- Without the answers, which belong to callers.
grant select (tenant_id, scope, key, fingerprint, state, fence, attempt, lease_ms, lease_expires_at, park_lapsed,
    life_ms, principal, request_id, first_request_id, created_at, begun_at, settled_at, settled_by, settled_request_id,
    status, body_compressed, body_bytes, answer_hash, expires_at) on work_records to ledgerd_audit;
grant select on audit.works to ledgerd_audit;
reset role;

-- +goose Down
drop view audit.works;
drop table work_records;
drop sequence work_fence_seq;
