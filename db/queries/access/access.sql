-- Tenants and API keys.

-- name: TenantInsert :one
-- Creates a tenant with the next number. Returns no row if another transaction created one with the number or the name.
insert into access_tenants (tenant_id, name)
select coalesce(max(t.tenant_id), 0) + 1, @name::text from access_tenants t
on conflict do nothing
returning tenant_id;

-- name: TenantGet :one
select tenant_id from access_tenants where name = @name;

-- name: APIKeyInsert :exec
insert into access_api_keys (tenant_id, key_id, principal, role, secret_hash)
values (@tenant_id, @key_id, @principal, @role, @secret_hash);

-- name: APIKeyGet :one
select principal, role, secret_hash, revoked_at from access_api_keys where tenant_id = @tenant_id and key_id = @key_id;

-- name: APIKeyList :many
select key_id, principal, role, created_at, revoked_at from access_api_keys where tenant_id = @tenant_id
    order by created_at;

-- name: APIKeyRevoke :execrows
update access_api_keys k set revoked_at = c.now
from (select clock_timestamp() as now) c
where k.tenant_id = @tenant_id and k.key_id = @key_id and k.revoked_at is null;

-- name: PolicyList :many
select operation, key_required, token_required, key_life_s, updated_at from access_policies
    where tenant_id = @tenant_id order by operation;

-- name: PolicyUpsert :exec
insert into access_policies (tenant_id, operation, key_required, token_required, key_life_s)
values (@tenant_id, @operation, @key_required, @token_required, @key_life_s)
on conflict on constraint access_policies_pkey do update set key_required = excluded.key_required,
    token_required = excluded.token_required, key_life_s = excluded.key_life_s, updated_at = excluded.updated_at;

-- name: PolicyDelete :execrows
delete from access_policies where tenant_id = @tenant_id and operation = @operation;
