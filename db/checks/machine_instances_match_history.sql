-- Every instance equals the result of its last move, and every move belongs to an instance.
select coalesce(i.tenant_id, h.tenant_id) as tenant_id, coalesce(i.machine, h.machine) as machine,
    coalesce(i.key, h.key) as key, i.instance_id, h.instance_id as instance_id_expected,
    i.revision, h.revision as revision_expected, i.state, h.to_state as state_expected,
    i.came_from, h.from_state as came_from_expected, i.cause, h.cause as cause_expected,
    i.version, h.version as version_expected, i.changed_at, h.recorded_at as changed_at_expected
from machine_instances i
full join (
    select distinct on (tenant_id, instance_id) tenant_id, instance_id, revision, machine, key, version, from_state,
        to_state, cause, recorded_at
    from machine_history order by tenant_id, instance_id, revision desc
) h on h.tenant_id = i.tenant_id and h.instance_id = i.instance_id
where (i.machine, i.key, i.revision, i.state, i.came_from, i.cause, i.version, i.changed_at)
    is distinct from (h.machine, h.key, h.revision, h.to_state, h.from_state, h.cause, h.version, h.recorded_at)
