-- The moves of a version are those of its definition, and the versions of a machine have no gaps.
select d.tenant_id, d.machine, d.version, m.moves, e.moves as moves_expected,
    case when d.version > 1 and p.version is null then 'the version before is missing' end as problem
from machine_definitions d
left join machine_definitions p on p.tenant_id = d.tenant_id and p.machine = d.machine and p.version = d.version - 1
left join lateral (
    select string_agg(concat(x.from_state, '>', x.to_state, case when x.back then ' back' end), ', '
        order by x.from_state, x.to_state) as moves
    from machine_moves x
    where x.tenant_id = d.tenant_id and x.machine = d.machine and x.version = d.version
) m on true
left join lateral (
    with allowed as (
        select f.state, a.move ->> 'to' as to_state
        from jsonb_array_elements(d.definition -> 'moves') as a (move)
        cross join lateral jsonb_array_elements_text(a.move -> 'from') as f (state)
    )
    select string_agg(x.move, ', ' order by x.from_state collate "C", x.to_state collate "C") as moves
    from (
        select '' as from_state, s.state ->> 'name' as to_state, '>' || (s.state ->> 'name') as move
        from jsonb_array_elements(d.definition -> 'states') as s (state) where (s.state ->> 'initial')::boolean
        union all
        select a.state, a.to_state, a.state || '>' || a.to_state from allowed a where a.to_state is not null
        union all
        select a.state, b.from_state, a.state || '>' || b.from_state || ' back'
        from allowed a
        join machine_moves b on b.tenant_id = d.tenant_id and b.machine = d.machine and b.version = d.version
            and b.to_state = a.state collate "C" and not b.back and b.from_state <> ''
        where a.to_state is null
    ) x
) e on true
where m.moves is distinct from e.moves or d.version > 1 and p.version is null
union all
select m.tenant_id, m.machine, m.version, concat(m.from_state, '>', m.to_state), null, 'there is no such version'
from machine_moves m
where not exists (
    select from machine_definitions d
    where d.tenant_id = m.tenant_id and d.machine = m.machine and d.version = m.version
)
