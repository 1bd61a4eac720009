-- The moves of an instance form a chain. Revisions start at 1 without gaps; each move leaves the state that the
-- previous one entered, and is allowed by the version of the machine, which never changes; a move back returns to the
-- state before the previous move; times never decrease.
select h.tenant_id, h.machine, h.key, h.instance_id, h.revision, h.previous_revision + 1 as revision_expected,
    h.from_state, h.previous_state as from_state_expected, h.to_state,
    case when m.from_state is null then 'the machine has no such move'
        when m.back and h.to_state <> h.previous_from then 'not back to where it came from' end as problem,
    h.recorded_at, h.previous_recorded_at
from (
    select tenant_id, machine, key, instance_id, revision, version, from_state, to_state, recorded_at,
        lag(revision, 1, 0::bigint) over w as previous_revision, lag(to_state, 1, '') over w as previous_state,
        lag(from_state, 1, '') over w as previous_from, lag(recorded_at) over w as previous_recorded_at,
        lag(version, 1, version) over w as previous_version
    from machine_history
    window w as (partition by tenant_id, instance_id order by revision)
) h
left join machine_moves m on m.tenant_id = h.tenant_id and m.machine = h.machine and m.version = h.version
    and m.from_state = h.from_state and m.to_state = h.to_state
where h.revision <> h.previous_revision + 1 or h.from_state <> h.previous_state or m.from_state is null
    or m.back and h.to_state <> h.previous_from or h.recorded_at < h.previous_recorded_at
    or h.version <> h.previous_version
