-- Every API key equals its last event in the audit log.
select coalesce(k.tenant_id, e.tenant_id) as tenant_id, coalesce(k.key_id, e.name) as key_id, e.event_id,
    k.role, e.after ->> 'role' as role_expected,
    case when k.tenant_id is null then 'there is no such key' when e.event_id is null then 'it was not made by a change'
        else 'it has other values' end as problem
from access_api_keys k
full join (
    select distinct on (x.tenant_id, x.name) x.tenant_id, x.name, x.event_id, x.after
    from audit_events x
    where x.kind = 'key'
    order by x.tenant_id, x.name, x.event_id desc
) e on e.tenant_id = k.tenant_id and e.name = k.key_id
where k.tenant_id is null or e.event_id is null
    or k.principal is distinct from e.after ->> 'principal'
    or k.role is distinct from e.after ->> 'role'
    or k.secret_digest is distinct from e.after ->> 'secret_digest'
    or to_jsonb(k.scopes) is distinct from e.after -> 'scopes'
    -- the log has nanoseconds, the table microseconds
    or abs(extract(epoch from coalesce(k.expires_at, 'epoch')
        - coalesce((e.after ->> 'expire_time')::timestamptz, 'epoch'))) > 0.00001
    or abs(extract(epoch from coalesce(k.revoked_at, 'epoch')
        - coalesce((e.after ->> 'revoke_time')::timestamptz, 'epoch'))) > 0.00001
    or coalesce(k.call_rate, 0) <> coalesce((e.after ->> 'call_rate')::integer, 0)
    or coalesce(k.call_limit, 0) <> coalesce((e.after ->> 'call_limit')::integer, 0)
