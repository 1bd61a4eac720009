-- Every instance was created by a batch, at or before the time of the batch. Its timer leads to the state that the
-- machine's version defines for its state.
select i.tenant_id, i.machine, i.key, i.instance_id,
    case when b.batch_id is null then 'no batch made it' end as problem,
    i.created_at, b.recorded_at as created_at_expected, i.timer_to, d.timer_to as timer_to_expected
from machine_instances i
left join commit_batches b on b.batch_id = i.instance_id >> 14 and b.commands > 0
left join lateral (
    select s.value -> 'timer' ->> 'to' as timer_to
    from machine_definitions m cross join lateral jsonb_array_elements(m.definition -> 'states') s
    where m.tenant_id = i.tenant_id and m.machine = i.machine and m.version = i.version and s.value ->> 'name' = i.state
) d on true
where b.batch_id is null or b.recorded_at < i.created_at or i.timer_to is distinct from d.timer_to
