-- Statements on webhook endpoints. The tenant is passed in an array and the index is reached by a lateral sub-select,
-- so that a generic plan made on an empty table stays right on a full one.

-- name: EndpointLock :many
-- Locks endpoints in the order of the arrays, which callers sort by tenant and name. n is the position, from 1.
select u.n::integer as n, e.ctid, e.endpoint_id, e.slot, e.url, e.types, e.description, e.disabled_for, e.disabled_at,
    e.secret_version, e.previous_expires_at, e.failing_since, e.failed_at, e.created_at, e.changed_at, e.principal,
    e.request_id
from (
    select generate_subscripts(@names::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@names::text[]) as name
) u
cross join lateral (
    select l.ctid, l.endpoint_id, l.slot, l.url, l.types, l.description, l.disabled_for, l.disabled_at,
        l.secret_version, l.previous_expires_at, l.failing_since, l.failed_at,
        l.created_at, l.changed_at, l.principal, l.request_id
    from notify_endpoints l
    where l.tenant_id = u.tenant_id and l.name = u.name
    offset 0
    for no key update
) e;

-- name: EndpointSlots :many
-- Used slots of tenants. A slot that another transaction takes meanwhile violates notify_endpoints_slot_key.
select u.n::integer as n, e.slot
from (select generate_subscripts(@tenants::integer[], 1) as n, unnest(@tenants::integer[]) as tenant_id) u
cross join lateral (
    select w.slot from notify_endpoints w
    where w.tenant_id = u.tenant_id
    order by w.slot
    limit 100
) e;

-- name: EndpointInsert :exec
insert into notify_endpoints (tenant_id, name, endpoint_id, slot, url, types, description, state, disabled_for,
    disabled_at, secret_version, previous_expires_at, failing_since, failed_at, created_at, changed_at, principal,
    request_id)
select u.tenant_id, u.name, u.endpoint_id, u.slot, u.url, u.types, u.description,
    case u.disabled_for when '' then 'active' else 'disabled' end, nullif(u.disabled_for, ''),
    nullif(u.disabled_at, '0001-01-01 00:00:00+00'), u.secret_version,
    nullif(u.previous_expires_at, '0001-01-01 00:00:00+00'), nullif(u.failing_since, '0001-01-01 00:00:00+00'),
    nullif(u.failed_at, '0001-01-01 00:00:00+00'), u.created_at, u.changed_at, u.principal, u.request_id
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@names::text[]) as name,
        unnest(@endpoint_ids::bigint[]) as endpoint_id, unnest(@slots::smallint[]) as slot,
        unnest(@urls::text[]) as url, unnest(@types::text[]) as types, unnest(@descriptions::text[]) as description,
        unnest(@disabled_for::text[]) as disabled_for, unnest(@disabled_at::timestamptz[]) as disabled_at,
        unnest(@secret_versions::integer[]) as secret_version,
        unnest(@previous_expires_at::timestamptz[]) as previous_expires_at,
        unnest(@failing_since::timestamptz[]) as failing_since, unnest(@failed_at::timestamptz[]) as failed_at,
        unnest(@created_at::timestamptz[]) as created_at, unnest(@changed_at::timestamptz[]) as changed_at,
        unnest(@principals::text[]) as principal,
            unnest(@request_ids::text[]) as request_id
) u
order by u.tenant_id, u.name collate "C";

-- name: EndpointUpdate :exec
-- Updates endpoints by ctid, since they are locked.
with updated as (
    update notify_endpoints e
    set endpoint_id = u.endpoint_id, url = u.url, types = u.types, description = u.description,
        state = case u.disabled_for when '' then 'active' else 'disabled' end,
        disabled_for = nullif(u.disabled_for, ''), disabled_at = nullif(u.disabled_at, '0001-01-01 00:00:00+00'),
        secret_version = u.secret_version,
        previous_expires_at = nullif(u.previous_expires_at, '0001-01-01 00:00:00+00'),
        failing_since = nullif(u.failing_since, '0001-01-01 00:00:00+00'),
        failed_at = nullif(u.failed_at, '0001-01-01 00:00:00+00'), created_at = u.created_at,
        changed_at = u.changed_at, principal = u.principal, request_id = u.request_id
    from (
        select unnest(@tids::tid[]) as tid, unnest(@endpoint_ids::bigint[]) as endpoint_id,
            unnest(@urls::text[]) as url, unnest(@types::text[]) as types, unnest(@descriptions::text[]) as description,
            unnest(@disabled_for::text[]) as disabled_for, unnest(@disabled_at::timestamptz[]) as disabled_at,
            unnest(@secret_versions::integer[]) as secret_version,
            unnest(@previous_expires_at::timestamptz[]) as previous_expires_at,
            unnest(@failing_since::timestamptz[]) as failing_since, unnest(@failed_at::timestamptz[]) as failed_at,
            unnest(@created_at::timestamptz[]) as created_at, unnest(@changed_at::timestamptz[]) as changed_at,
            unnest(@principals::text[]) as principal, unnest(@request_ids::text[]) as request_id
        offset 0
    ) u
    where e.ctid = u.tid
    returning 1
)
select commit_expect(count(*), cardinality(@tids::tid[])) from updated;

-- name: EndpointDrop :exec
-- Deletes endpoints.
with dropped as (
    delete from notify_endpoints e where e.ctid = any(@tids::tid[])
    returning 1
)
select commit_expect(count(*), cardinality(@tids::tid[])) from dropped;

-- name: EndpointGet :one
select name, endpoint_id, url, types, description, disabled_for, disabled_at, secret_version, previous_expires_at,
    failing_since, failed_at, created_at, changed_at, principal, request_id
from notify_endpoints
where tenant_id = @tenant_id and name = @name;

-- name: EndpointPage :many
-- Endpoints of a tenant after a given name, by name.
select name, endpoint_id, url, types, description, disabled_for, disabled_at, secret_version, previous_expires_at,
    failing_since, failed_at, created_at, changed_at, principal, request_id
from notify_endpoints
where tenant_id = @tenant_id and name > @after
order by name
limit @count;

-- name: EndpointFind :many
-- Active endpoints of tenants by name, without locks. The limit is a constant, because a generic plan for an unknown
-- limit would read them all.
select u.n::integer as n, e.name, e.types
from (select generate_subscripts(@tenants::integer[], 1) as n, unnest(@tenants::integer[]) as tenant_id) u
cross join lateral (
    select w.name, w.types from notify_endpoints w
    where w.tenant_id = u.tenant_id and w.state = 'active'
    order by w.name
    limit 100
) e;
