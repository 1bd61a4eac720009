-- Reads of work records, beside the engine. Expired records are not found.

-- name: WorkRead :one
-- A record with its answer.
select w.scope, w.key, w.fingerprint, w.state, w.fence, w.attempt, w.lease_expires_at, w.park_lapsed, w.principal,
    w.request_id, w.first_request_id, w.created_at, w.begun_at, w.settled_at, w.settled_by, w.settled_request_id,
    w.status, w.headers, w.body, w.body_compressed, w.body_bytes, w.expires_at, clock_timestamp()::timestamptz as now
from work_records w
where w.tenant_id = @tenant_id::integer and w.scope = @scope::text and w.key = @key::text
    and (w.expires_at is null or w.expires_at > clock_timestamp());

-- name: WorkPage :many
-- Records after a scope and key, in their order, without bodies. A page reads a limited number of rows.
select w.scope, w.key, w.fingerprint, w.state, w.fence, w.attempt, w.lease_expires_at, w.park_lapsed, w.principal,
    w.request_id, w.first_request_id, w.created_at, w.begun_at, w.settled_at, w.settled_by, w.settled_request_id,
    w.status, w.body_bytes, w.expires_at, clock_timestamp()::timestamptz as now
from work_records w
where w.tenant_id = @tenant_id::integer and (w.scope, w.key) > (@after_scope::text, @after_key::text)
    and w.scope <= @last_scope::text
order by w.scope, w.key
limit @count::integer;

-- name: WorkPageOpen :many
-- WorkPage for records in a state that work_records_open_idx contains.
select w.scope, w.key, w.fingerprint, w.state, w.fence, w.attempt, w.lease_expires_at, w.park_lapsed, w.principal,
    w.request_id, w.first_request_id, w.created_at, w.begun_at, w.settled_at, w.settled_by, w.settled_request_id,
    w.status, w.body_bytes, w.expires_at, clock_timestamp()::timestamptz as now
from work_records w
where w.tenant_id = @tenant_id::integer and w.state = @state::text and w.state in ('running', 'parked')
    and (w.scope, w.key) > (@after_scope::text, @after_key::text) and w.scope <= @last_scope::text
order by w.scope, w.key
limit @count::integer;

-- name: WorkBusy :many
-- Positions of the works that have a holder now. A Begin that waits for one of the others may be tried again.
select u.n::integer as n
from (
    select generate_subscripts(@keys::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@scopes::text[]) as scope, unnest(@keys::text[]) as key
) u
cross join lateral (
    select 1 from work_records l
    where l.tenant_id = u.tenant_id and l.scope = u.scope and l.key = u.key and l.state = 'running'
        and l.lease_expires_at > clock_timestamp()
    offset 0
) w;

-- name: WorkClean :execrows
-- Deletes some expired records, oldest first, skipping locked rows. Uses now(), because clock_timestamp() cannot be
-- an index condition.
delete from work_records
where ctid = any(array(
    select w.ctid from work_records w
    where w.expires_at < now()
    order by w.expires_at
    limit @batch::integer
    for update skip locked
));

-- name: WorkOverdue :one
-- Age of the oldest expired record that is still there, in seconds; 0: there is none.
select coalesce((
    select extract(epoch from clock_timestamp() - w.expires_at)
    from work_records w where w.expires_at < now() order by w.expires_at limit 1
), 0)::double precision as seconds;
