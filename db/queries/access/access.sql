-- Tenants and API keys.

-- name: TenantUpsert :one
-- Makes a tenant, or finds it.
with made as (
    insert into access_tenants (name) values (@name) on conflict (name) do nothing returning tenant_id
)
select tenant_id from made union all select tenant_id from access_tenants where name = @name limit 1;

-- name: TenantGet :one
select tenant_id from access_tenants where name = @name;

-- name: APIKeyInsert :exec
insert into access_api_keys (tenant_id, key_id, principal, role, secret_hash)
values (@tenant_id, @key_id, @principal, @role, @secret_hash);

-- name: APIKeyGet :one
select principal, role, secret_hash, revoked_at from access_api_keys where tenant_id = @tenant_id and key_id = @key_id;

-- name: APIKeyList :many
select key_id, principal, role, created_at, revoked_at from access_api_keys where tenant_id = @tenant_id order by created_at;

-- name: APIKeyRevoke :execrows
update access_api_keys set revoked_at = clock_timestamp()
where tenant_id = @tenant_id and key_id = @key_id and revoked_at is null;

-- name: PolicyList :many
select operation, key_required, token_required, key_life_s, updated_at from access_policies where tenant_id = @tenant_id order by operation;

-- name: PolicyUpsert :exec
insert into access_policies (tenant_id, operation, key_required, token_required, key_life_s)
values (@tenant_id, @operation, @key_required, @token_required, @key_life_s)
on conflict on constraint access_policies_pkey do update set key_required = excluded.key_required,
    token_required = excluded.token_required, key_life_s = excluded.key_life_s, updated_at = clock_timestamp();

-- name: PolicyDelete :execrows
delete from access_policies where tenant_id = @tenant_id and operation = @operation;
