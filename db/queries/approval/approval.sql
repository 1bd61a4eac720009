-- Statements on requests for approval, in batches. Arrays have the same length; n is a position in them, from 1. They
-- have no nulls: the empty text means null.

-- name: ApprovalLock :many
-- Locks requests in the order of the arrays, which callers sort, and reads what their decisions depend on.
select u.n::integer as n, a.ctid, a.state, a.operation, a.reason, a.principal, a.request_id, a.created_at, a.expires_at,
    a.decided_by, a.decided_at, a.note, a.response
from (
    select generate_subscripts(@approval_ids::bigint[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@approval_ids::bigint[]) as approval_id
) u
cross join lateral (
    select r.ctid, r.state, r.operation, r.reason, r.principal, r.request_id, r.created_at, r.expires_at, r.decided_by,
        r.decided_at, r.note, r.response
    from approval_requests r
    where r.tenant_id = u.tenant_id and r.approval_id = u.approval_id
    for no key update
    offset 0
) a;

-- name: ApprovalInsert :exec
-- Inserts requests in the order of the arrays, which callers sort.
insert into approval_requests (tenant_id, approval_id, state, operation, request, details, reason, principal, key_id,
    request_id, created_at, expires_at)
select u.tenant_id, u.approval_id, 'open', u.operation, u.request, u.details, nullif(u.reason, ''), u.principal,
    nullif(u.key_id, ''), u.request_id, @now::timestamptz, u.expires_at
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@approval_ids::bigint[]) as approval_id,
        unnest(@operations::text[]) as operation, unnest(@requests::bytea[]) as request,
        unnest(@details::jsonb[]) as details, unnest(@reasons::text[]) as reason,
        unnest(@principals::text[]) as principal, unnest(@key_ids::text[]) as key_id,
        unnest(@request_ids::text[]) as request_id, unnest(@expires_at::timestamptz[]) as expires_at
) u;

-- name: ApprovalUpdate :exec
-- Records decisions of requests whose rows are locked. A null response means that the request was not done.
with updated as (
    update approval_requests a
    set state = u.state, decided_by = u.decided_by, decided_key_id = nullif(u.decided_key_id, ''),
        decided_request_id = u.decided_request_id, decided_at = @now::timestamptz, note = nullif(u.note, ''),
        response = u.response
    from (
        select unnest(@tids::tid[]) as tid, unnest(@states::text[]) as state, unnest(@decided_by::text[]) as decided_by,
            unnest(@decided_key_ids::text[]) as decided_key_id,
            unnest(@decided_request_ids::text[]) as decided_request_id, unnest(@notes::text[]) as note,
            unnest(@responses::bytea[]) as response
    ) u
    where a.ctid = u.tid
    returning 1
)
select commit_expect(count(*), cardinality(@tids::tid[])) from updated;
