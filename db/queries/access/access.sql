-- Tenants and API keys.

-- name: TenantInsert :one
-- Creates a tenant with the next number. Returns no row if another transaction created one with the number or the name.
insert into access_tenants (tenant_id, name)
select coalesce(max(t.tenant_id), 0) + 1, @name::text from access_tenants t
on conflict do nothing
returning tenant_id, created_at;

-- name: TenantGet :one
select tenant_id from access_tenants where name = @name;

-- name: AdministratorCheck :one
-- Whether the role sees the rows of all tenants: row-level security does not apply to it, or its policies show it all
-- rows. Also true for a database without the tables, where later statements fail.
select current_user::text as role,
    (coalesce(not row_security_active(to_regclass('access_api_keys')::oid), true)
        or pg_has_role('ledgerd_admin', 'usage') or pg_has_role('ledgerd_audit', 'usage'))::boolean as sees;

-- name: TenantList :many
select tenant_id, name, created_at from access_tenants where name > @after::text order by name limit @size;

-- name: APIKeyInsert :one
insert into access_api_keys (tenant_id, key_id, principal, role, scopes, call_rate, call_limit, secret_hash, created_by,
    expires_at)
values (@tenant_id, @key_id, @principal, @role, @scopes, @call_rate, @call_limit, @secret_hash, @created_by,
    @expires_at)
returning created_at, secret_digest;

-- name: APIKeyGet :one
-- Reads the columns that authenticate a key. life_s is the time until it expires, or infinity.
select principal, role, scopes, call_rate, call_limit, secret_hash, expires_at, revoked_at,
    coalesce(extract(epoch from expires_at - c.now), 'infinity')::double precision as life_s,
    coalesce(used_at < c.now - interval '1 minute', true)::boolean as stale
from access_api_keys, (select clock_timestamp() as now) c
where tenant_id = @tenant_id and key_id = @key_id;

-- name: APIKeyUsed :exec
-- Records the use of a key, unless another process is doing so, or has done so within a minute.
update access_api_keys k set used_at = u.now
from (
    select a.tenant_id, a.key_id, c.now
    from access_api_keys a, (select clock_timestamp() as now) c
    where a.tenant_id = @tenant_id and a.key_id = @key_id
        and coalesce(a.used_at < c.now - interval '1 minute', true)
    for no key update of a skip locked
) u
where k.tenant_id = u.tenant_id and k.key_id = u.key_id;

-- name: APIKeyList :many
-- A page of a tenant's keys, by time of creation.
select key_id, principal, role, scopes, call_rate, call_limit, created_at, created_by, expires_at, revoked_at,
    revoked_by, used_at, secret_digest
from access_api_keys
where tenant_id = @tenant_id and (created_at, key_id) > (@after_time::timestamptz, @after_id::text)
order by created_at, key_id
limit @size;

-- name: APIKeyLock :one
-- Locks a key that is about to be changed, and reads the time.
select key_id, principal, role, scopes, call_rate, call_limit, created_at, created_by, expires_at, revoked_at,
    revoked_by, used_at, secret_digest, clock_timestamp()::timestamptz as now
from access_api_keys
where tenant_id = @tenant_id and key_id = @key_id
for no key update;

-- name: APIKeyRevoke :exec
update access_api_keys set revoked_at = @revoked_at, revoked_by = @revoked_by
where tenant_id = @tenant_id and key_id = @key_id;

-- name: APIKeyExpire :exec
update access_api_keys set expires_at = @expires_at where tenant_id = @tenant_id and key_id = @key_id;

-- name: Author :one
-- The name of a caller in the records of changes; without a tenant, the login role of this connection. valid is true
-- unless the caller has a key that is revoked or expired.
select coalesce((select t.name || '/' || @principal::text from access_tenants t where t.tenant_id = @tenant_id),
    session_user)::text as author,
    (@key_id::text = '' or exists (
        select from access_api_keys k
        where k.tenant_id = @tenant_id and k.key_id = @key_id::text and k.revoked_at is null
            and coalesce(k.expires_at > clock_timestamp(), true)
    ))::boolean as valid;

-- name: PolicyList :many
select operation, key_required, token_required, key_life_s, approval_required, approval_above, changed_at
from access_policies
where tenant_id = @tenant_id order by operation;

-- name: PolicyLock :one
-- Locks a policy that is about to be changed.
select key_required, token_required, key_life_s, approval_required, approval_above from access_policies
where tenant_id = @tenant_id and operation = @operation
for no key update;

-- name: PolicyInsert :execrows
-- Inserts a policy, unless the tenant has one for the operation.
insert into access_policies (tenant_id, operation, key_required, token_required, key_life_s, approval_required,
    approval_above)
values (@tenant_id, @operation, @key_required, @token_required, @key_life_s, @approval_required, @approval_above)
on conflict do nothing;

-- name: PolicyUpsert :exec
insert into access_policies (tenant_id, operation, key_required, token_required, key_life_s, approval_required,
    approval_above)
values (@tenant_id, @operation, @key_required, @token_required, @key_life_s, @approval_required, @approval_above)
on conflict on constraint access_policies_pkey do update set key_required = excluded.key_required,
    token_required = excluded.token_required, key_life_s = excluded.key_life_s,
    approval_required = excluded.approval_required, approval_above = excluded.approval_above,
    changed_at = excluded.changed_at;

-- name: PolicyDelete :exec
delete from access_policies where tenant_id = @tenant_id and operation = @operation;
