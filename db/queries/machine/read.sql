-- Reads of machines and instances, beside the engine: one tenant, one snapshot. States are those at the present time of
-- the database: once its timer has fired, an instance is in the state to which the timer moves it.

-- name: MachineGet :one
-- The newest of some versions of a machine.
select d.version, d.definition, d.principal, d.request_id, d.created_at
from machine_definitions d
where d.tenant_id = @tenant_id::integer and d.machine = @machine::text
    and d.version between @first::integer and @last::integer
order by d.tenant_id desc, d.machine desc, d.version desc
limit 1;

-- name: MachinePage :many
-- Newest versions after a name. Versions have no gaps.
select d.machine, d.version, d.definition, d.principal, d.request_id, d.created_at
from machine_definitions d
where d.tenant_id = @tenant_id::integer and d.machine > @after::text
    and not exists (
        select from machine_definitions x
        where x.tenant_id = d.tenant_id and x.machine = d.machine and x.version = d.version + 1
    )
order by d.machine
limit @count::integer;

-- name: InstanceGet :one
select i.machine, i.key, i.instance_id, i.version, i.state, i.came_from, i.revision, i.cause, i.owner, i.timer_ms,
    i.timer_at, i.timer_to, i.created_at, i.changed_at, clock_timestamp()::timestamptz as now
from machine_instances i
where i.tenant_id = @tenant_id::integer and i.machine = @machine::text and i.key = @key::text;

-- name: InstancePage :many
-- All instances after a key.
select i.machine, i.key, i.instance_id, i.version, i.state, i.came_from, i.revision, i.cause, i.owner, i.timer_ms,
    i.timer_at, i.timer_to, i.created_at, i.changed_at, now()::timestamptz as now
from machine_instances i
where i.tenant_id = @tenant_id::integer and i.machine = @machine::text and i.key > @after::text
order by i.key
limit @count::integer;

-- name: InstancePageOfState :many
-- Instances in a state after an id: those recorded in it whose timer has not fired, and the few whose timer has moved
-- them there, which the scheduler has not recorded yet.
select i.machine, i.key, i.instance_id, i.version, i.state, i.came_from, i.revision, i.cause, i.owner, i.timer_ms,
    i.timer_at, i.timer_to, i.created_at, i.changed_at, now()::timestamptz as now
from (
    (
        select r.* from machine_instances r
        where r.tenant_id = @tenant_id::integer and r.machine = @machine::text and r.state = @state::text
            and r.state <> '' and r.instance_id > @after::bigint and (r.timer_at is null or r.timer_at > now())
        order by r.instance_id
        limit @count::integer
    )
    union all
    (
        select d.* from (
            select x.* from machine_instances x
            where x.tenant_id = @tenant_id::integer and x.machine = @machine::text and x.timer_at <= now()
            offset 0
        ) d
        where d.timer_to = @state::text and d.instance_id > @after::bigint
        order by d.instance_id
        limit @count::integer
    )
) i
order by i.instance_id
limit @count::integer;

-- name: InstancePageOfOwner :many
-- Instances of an owner after an id, in one state or in any.
select i.machine, i.key, i.instance_id, i.version, i.state, i.came_from, i.revision, i.cause, i.owner, i.timer_ms,
    i.timer_at, i.timer_to, i.created_at, i.changed_at, now()::timestamptz as now
from machine_instances i
where i.tenant_id = @tenant_id::integer and i.machine = @machine::text and i.owner = @owner::text
    and i.instance_id > @after::bigint
    and (@state::text = '' or case when i.timer_at <= now() then i.timer_to else i.state end = @state::text)
order by i.instance_id
limit @count::integer;

-- name: HistoryPage :many
-- Moves of an instance after a revision.
select h.revision, h.from_state, h.to_state, h.actor, h.cause, h.reason, h.inputs, h.principal, h.request_id,
    h.recorded_at
from machine_history h
where h.tenant_id = @tenant_id::integer and h.instance_id = @instance_id::bigint and h.revision > @after::bigint
order by h.revision
limit @count::integer;

-- name: InstanceDuePage :many
-- Instances whose timer has fired, oldest first, after a given one, for the background task. Uses now(), because
-- clock_timestamp() cannot be an index condition.
select i.tenant_id, i.machine, i.key, i.instance_id, i.timer_at
from machine_instances i
where i.timer_at <= now() and (i.timer_at, i.instance_id) > (@after::timestamptz, @after_id::bigint)
order by i.timer_at, i.instance_id
limit @batch::integer;
