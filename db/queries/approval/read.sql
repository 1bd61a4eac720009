-- Reads of requests for approval, beside the engine: one tenant, one snapshot, planned with their actual values.

-- name: ApprovalGet :one
select a.approval_id, a.state, (a.state = 'open' and a.expires_at <= clock_timestamp())::boolean as expired,
    a.operation, a.reason, a.principal, a.key_id, a.request_id, a.created_at, a.expires_at, a.decided_by, a.decided_at,
    a.note, a.request, a.response
from approval_requests a
where a.tenant_id = @tenant_id::integer and a.approval_id = @approval_id::bigint;

-- name: ApprovalPage :many
-- The newest requests before an id.
select a.approval_id, a.state, (a.state = 'open' and a.expires_at <= clock_timestamp())::boolean as expired,
    a.operation, a.reason, a.principal, a.request_id, a.created_at, a.expires_at, a.decided_by, a.decided_at, a.note
from approval_requests a
where a.tenant_id = @tenant_id::integer and a.approval_id < @before_id::bigint
order by a.tenant_id desc, a.approval_id desc
limit @count::integer;

-- name: ApprovalPageOfState :many
-- ApprovalPage for one stored state. For the state open: either the expired requests or the others.
select a.approval_id, a.state, (a.state = 'open' and a.expires_at <= clock_timestamp())::boolean as expired,
    a.operation, a.reason, a.principal, a.request_id, a.created_at, a.expires_at, a.decided_by, a.decided_at, a.note
from approval_requests a
where a.tenant_id = @tenant_id::integer and a.state = @state::text and a.approval_id < @before_id::bigint
    and (a.state <> 'open' or (a.expires_at <= clock_timestamp()) = @expired::boolean)
order by a.tenant_id desc, a.state desc, a.approval_id desc
limit @count::integer;
