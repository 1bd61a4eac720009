-- Every policy equals its last event in the audit log.
select coalesce(p.tenant_id, e.tenant_id) as tenant_id, coalesce(p.operation, e.name) as operation, e.event_id,
    p.approval_required, (e.after ->> 'approval_required')::boolean as approval_required_expected,
    case when p.tenant_id is null then 'there is no such policy' when e.after is null then 'it was not made by a change'
        else 'it has other values' end as problem
from access_policies p
full join (
    select distinct on (x.tenant_id, x.name) x.tenant_id, x.name, x.event_id, x.after
    from audit_events x
    where x.kind = 'policy'
    order by x.tenant_id, x.name, x.event_id desc
) e on e.tenant_id = p.tenant_id and e.name = p.operation
where case when p.tenant_id is null then e.after is not null
    else e.after is null
        or p.key_required is distinct from (e.after ->> 'key_required')::boolean
        or p.token_required is distinct from (e.after ->> 'token_required')::boolean
        or p.approval_required is distinct from coalesce((e.after ->> 'approval_required')::boolean, false)
        or p.approval_above is distinct from e.after ->> 'approval_above'
        or make_interval(secs => coalesce(p.key_life_s, 0))
            <> coalesce((e.after ->> 'key_life')::interval, interval '0') end
