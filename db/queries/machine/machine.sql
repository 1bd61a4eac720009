-- Statements on machines and their instances, in batches. Arrays have the same length; n is a position in them, from 1.
-- They have no nulls: the zero time and the empty text mean null. The tenant is passed in an array and the index is
-- reached by a lateral sub-select, so that a generic plan made on an empty table stays right on a full one.

-- name: InstanceLock :many
-- Locks instances in the order of the arrays, which callers sort by tenant, machine and key, with the hash of the
-- definition that they follow.
select u.n::integer as n, i.instance_id, i.version, i.state, i.came_from, i.revision, i.cause, i.owner,
    i.timer_ms, i.timer_at, i.timer_to, i.created_at, i.changed_at, d.definition_hash
from (
    select generate_subscripts(@keys::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@machines::text[]) as machine, unnest(@keys::text[]) as key
) u
cross join lateral (
    select l.instance_id, l.version, l.state, l.came_from, l.revision, l.cause, l.owner, l.timer_ms,
        l.timer_at, l.timer_to, l.created_at, l.changed_at
    from machine_instances l
    where l.tenant_id = u.tenant_id and l.machine = u.machine and l.key = u.key
    offset 0
    for no key update
) i
cross join lateral (
    select x.definition_hash from machine_definitions x
    where x.tenant_id = u.tenant_id and x.machine = u.machine and x.version = i.version
    offset 0
) d;

-- name: MachineNewest :many
-- Newest versions of machines.
select u.n::integer as n, d.version, d.definition_hash, d.principal, d.request_id, d.created_at
from (
    select generate_subscripts(@machines::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@machines::text[]) as machine
) u
cross join lateral (
    select x.version, x.definition_hash, x.principal, x.request_id, x.created_at
    from machine_definitions x
    where x.tenant_id = u.tenant_id and x.machine = u.machine
    order by x.tenant_id desc, x.machine desc, x.version desc
    limit 1
) d;

-- name: DefinitionRead :many
-- Contents of versions.
select u.n::integer as n, d.definition, d.definition_hash
from (
    select generate_subscripts(@machines::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@machines::text[]) as machine, unnest(@versions::integer[]) as version
) u
cross join lateral (
    select x.definition, x.definition_hash from machine_definitions x
    where x.tenant_id = u.tenant_id and x.machine = u.machine and x.version = u.version
    offset 0
) d;

-- name: DefinitionInsert :exec
insert into machine_definitions (tenant_id, machine, version, definition, definition_hash, principal, request_id,
    created_at)
select u.tenant_id, u.machine, u.version, u.definition::jsonb, u.definition_hash, u.principal, u.request_id,
    @now::timestamptz
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@machines::text[]) as machine,
        unnest(@versions::integer[]) as version, unnest(@definitions::text[]) as definition,
        unnest(@definition_hashes::bytea[]) as definition_hash, unnest(@principals::text[]) as principal,
        unnest(@request_ids::text[]) as request_id
) u
order by u.tenant_id, u.machine collate "C", u.version;

-- name: MoveInsert :exec
insert into machine_moves (tenant_id, machine, version, from_state, to_state, back)
select u.tenant_id, u.machine, u.version, u.from_state, u.to_state, u.back
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@machines::text[]) as machine,
        unnest(@versions::integer[]) as version, unnest(@from_states::text[]) as from_state,
        unnest(@to_states::text[]) as to_state, unnest(@back::boolean[]) as back
) u
order by u.tenant_id, u.machine collate "C", u.version, u.from_state collate "C", u.to_state collate "C";

-- name: InstanceInsert :exec
-- Inserts instances in the order of the arrays, which callers sort.
insert into machine_instances (tenant_id, machine, key, instance_id, version, state, came_from, revision, cause, owner,
    timer_ms, timer_at, timer_to, created_at, changed_at)
select u.tenant_id, u.machine, u.key, u.instance_id, u.version, u.state, u.came_from, u.revision, u.cause,
    nullif(u.owner, ''), nullif(u.timer_ms, 0), nullif(u.timer_at, '0001-01-01 00:00:00+00'), nullif(u.timer_to, ''),
    @now::timestamptz, @now::timestamptz
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@machines::text[]) as machine, unnest(@keys::text[]) as key,
        unnest(@instance_ids::bigint[]) as instance_id, unnest(@versions::integer[]) as version,
        unnest(@states::text[]) as state, unnest(@came_from::text[]) as came_from,
        unnest(@revisions::bigint[]) as revision, unnest(@causes::text[]) as cause, unnest(@owners::text[]) as owner,
        unnest(@timer_ms::bigint[]) as timer_ms, unnest(@timer_at::timestamptz[]) as timer_at,
        unnest(@timer_to::text[]) as timer_to
) u;

-- name: InstanceMove :exec
-- Records one move of each of these instances, which are locked. Finds them by their keys: another move in the same
-- transaction may have given them another ctid.
with moved as (
    update machine_instances i
    set state = y.state, came_from = y.came_from, revision = y.revision, cause = y.cause, owner = nullif(y.owner, ''),
        timer_at = nullif(y.timer_at, '0001-01-01 00:00:00+00'), timer_to = nullif(y.timer_to, ''),
        changed_at = y.changed_at
    from (
        select l.ctid as tid, u.*
        from (
            select unnest(@tenants::integer[]) as tenant_id, unnest(@machines::text[]) as machine,
                unnest(@keys::text[]) as key, unnest(@states::text[]) as state, unnest(@came_from::text[]) as came_from,
                unnest(@revisions::bigint[]) as revision, unnest(@causes::text[]) as cause,
                unnest(@owners::text[]) as owner,
                unnest(@timer_at::timestamptz[]) as timer_at, unnest(@timer_to::text[]) as timer_to,
                unnest(@changed_at::timestamptz[]) as changed_at
        ) u
        cross join lateral (
            select x.ctid from machine_instances x
            where x.tenant_id = u.tenant_id and x.machine = u.machine and x.key = u.key
            offset 0
        ) l
    ) y
    where i.ctid = y.tid
    returning 1
)
select commit_expect(count(*), cardinality(@keys::text[])) from moved;

-- name: HistoryInsert :exec
insert into machine_history (tenant_id, instance_id, revision, machine, key, version, from_state, to_state, actor,
    cause, reason, inputs, principal, request_id, recorded_at)
select u.tenant_id, u.instance_id, u.revision, u.machine, u.key, u.version, u.from_state, u.to_state, u.actor, u.cause,
    nullif(u.reason, ''), u.inputs, case when u.actor <> 'timer' then u.principal end, u.request_id, u.recorded_at
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@instance_ids::bigint[]) as instance_id,
        unnest(@revisions::bigint[]) as revision, unnest(@machines::text[]) as machine, unnest(@keys::text[]) as key,
        unnest(@versions::integer[]) as version, unnest(@from_states::text[]) as from_state,
        unnest(@to_states::text[]) as to_state, unnest(@actors::text[]) as actor, unnest(@causes::text[]) as cause,
        unnest(@reasons::text[]) as reason, unnest(@inputs::jsonb[]) as inputs,
        unnest(@principals::text[]) as principal, unnest(@request_ids::text[]) as request_id,
        unnest(@recorded_at::timestamptz[]) as recorded_at
) u;
