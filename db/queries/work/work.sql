-- Statements on work records in batches. Arrays have the same length; n is a position in them, from 1. They have no
-- nulls: the zero time and the empty text mean null, and a text before an array of bytes tells whether there are any.

-- name: WorkLock :many
-- Locks records in the order of the arrays, which callers sort by tenant, scope and key. Does not read the answers.
select u.n::integer as n, w.fingerprint, w.state, w.fence, w.attempt, w.lease_ms, w.lease_expires_at, w.park_lapsed,
    w.life_ms, w.principal, w.request_id, w.first_request_id, w.created_at, w.begun_at, w.settled_at, w.settled_by,
    w.settled_request_id, w.answer_hash, w.expires_at, w.ctid
from (
    select generate_subscripts(@keys::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@scopes::text[]) as scope, unnest(@keys::text[]) as key
) u
cross join lateral (
    select l.fingerprint, l.state, l.fence, l.attempt, l.lease_ms, l.lease_expires_at, l.park_lapsed, l.life_ms,
        l.principal, l.request_id, l.first_request_id, l.created_at, l.begun_at, l.settled_at, l.settled_by,
        l.settled_request_id, l.answer_hash, l.expires_at, l.ctid
    from work_records l
    where l.tenant_id = u.tenant_id and l.scope = u.scope and l.key = u.key
    offset 0
    for no key update
) w;

-- name: FenceDraw :many
-- Draws fences when the locks are held, so that each is greater than all earlier fences of the locked rows.
select (e.base + nextval('work_fence_seq'))::bigint as fence
from (select commit_base() as base offset 0) e, generate_series(1, @count::integer);

-- name: WorkInsert :exec
-- Inserts records. All processes insert in the same order.
insert into work_records (tenant_id, scope, key, fingerprint, state, fence, attempt, lease_ms, lease_expires_at,
    park_lapsed, life_ms, principal, request_id, first_request_id, created_at, begun_at, settled_at, settled_by,
    settled_request_id, status, headers, body, body_compressed, body_bytes, answer_hash, expires_at)
select u.tenant_id, u.scope, u.key, case when u.bound then u.fingerprint end, u.state, u.fence, u.attempt, u.lease_ms,
    nullif(u.lease_expires_at, '0001-01-01 00:00:00+00'), u.park_lapsed, u.life_ms, u.principal, u.request_id,
    u.first_request_id, u.created_at, u.begun_at, nullif(u.settled_at, '0001-01-01 00:00:00+00'),
    case when u.settled_at > '0001-01-01 00:00:00+00' then u.settled_by end, nullif(u.settled_request_id, ''),
    case when u.answered then u.status end, case when u.answered then u.headers end, case when u.answered
    then u.body end, u.body_compressed, case when u.answered then u.body_bytes end, case when u.answered
    then u.answer_hash end, nullif(u.expires_at, '0001-01-01 00:00:00+00')
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@scopes::text[]) as scope, unnest(@keys::text[]) as key,
        unnest(@bound::boolean[]) as bound, unnest(@fingerprints::bytea[]) as fingerprint,
        unnest(@states::text[]) as state, unnest(@fences::bigint[]) as fence,
        unnest(@attempts::integer[]) as attempt, unnest(@lease_ms::bigint[]) as lease_ms,
        unnest(@lease_expires_at::timestamptz[]) as lease_expires_at, unnest(@park_lapsed::boolean[]) as park_lapsed,
        unnest(@life_ms::bigint[]) as life_ms, unnest(@principals::text[]) as principal,
        unnest(@request_ids::text[]) as request_id, unnest(@first_request_ids::text[]) as first_request_id,
        unnest(@created_at::timestamptz[]) as created_at, unnest(@begun_at::timestamptz[]) as begun_at,
        unnest(@settled_at::timestamptz[]) as settled_at, unnest(@settled_by::text[]) as settled_by,
        unnest(@settled_request_ids::text[]) as settled_request_id, unnest(@answered::boolean[]) as answered,
        unnest(@statuses::integer[]) as status, unnest(@headers::jsonb[]) as headers,
        unnest(@bodies::bytea[]) as body, unnest(@body_compressed::boolean[]) as body_compressed,
        unnest(@body_bytes::integer[]) as body_bytes, unnest(@answer_hashes::bytea[]) as answer_hash,
        unnest(@expires_at::timestamptz[]) as expires_at
) u
order by u.tenant_id, u.scope collate "C", u.key collate "C";

-- name: WorkUpdate :exec
-- Updates locked records by ctid. Fails unless all are there.
with updated as (
    update work_records w
    set fingerprint = case when y.bound then y.fingerprint end, state = y.state, fence = y.fence, attempt = y.attempt,
        lease_ms = y.lease_ms, lease_expires_at = nullif(y.lease_expires_at, '0001-01-01 00:00:00+00'),
        park_lapsed = y.park_lapsed, life_ms = y.life_ms, principal = y.principal, request_id = y.request_id,
        first_request_id = y.first_request_id, created_at = y.created_at, begun_at = y.begun_at,
        settled_at = nullif(y.settled_at, '0001-01-01 00:00:00+00'), settled_by = case
        when y.settled_at > '0001-01-01 00:00:00+00' then y.settled_by end,
        settled_request_id = nullif(y.settled_request_id, ''), status = case when y.answered then y.status end,
        headers = case when y.answered then y.headers end, body = case when y.answered then y.body end,
        body_compressed = y.body_compressed, body_bytes = case when y.answered then y.body_bytes end,
        answer_hash = case when y.answered then y.answer_hash end,
        expires_at = nullif(y.expires_at, '0001-01-01 00:00:00+00')
    from (
        select unnest(@tenants::integer[]) as tenant_id, unnest(@scopes::text[]) as scope, unnest(@keys::text[]) as key,
            unnest(@tids::tid[]) as tid,
            unnest(@bound::boolean[]) as bound, unnest(@fingerprints::bytea[]) as fingerprint,
            unnest(@states::text[]) as state, unnest(@fences::bigint[]) as fence,
            unnest(@attempts::integer[]) as attempt, unnest(@lease_ms::bigint[]) as lease_ms,
            unnest(@lease_expires_at::timestamptz[]) as lease_expires_at,
            unnest(@park_lapsed::boolean[]) as park_lapsed,
            unnest(@life_ms::bigint[]) as life_ms, unnest(@principals::text[]) as principal,
            unnest(@request_ids::text[]) as request_id, unnest(@first_request_ids::text[]) as first_request_id,
            unnest(@created_at::timestamptz[]) as created_at, unnest(@begun_at::timestamptz[]) as begun_at,
            unnest(@settled_at::timestamptz[]) as settled_at, unnest(@settled_by::text[]) as settled_by,
            unnest(@settled_request_ids::text[]) as settled_request_id, unnest(@answered::boolean[]) as answered,
            unnest(@statuses::integer[]) as status, unnest(@headers::jsonb[]) as headers,
            unnest(@bodies::bytea[]) as body, unnest(@body_compressed::boolean[]) as body_compressed,
            unnest(@body_bytes::integer[]) as body_bytes, unnest(@answer_hashes::bytea[]) as answer_hash,
            unnest(@expires_at::timestamptz[]) as expires_at
        offset 0
    ) y
    where w.ctid = y.tid and w.tenant_id = y.tenant_id and w.scope = y.scope and w.key = y.key
    returning 1
)
select commit_expect(count(*), cardinality(@keys::text[])) from updated;
