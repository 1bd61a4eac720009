-- Tenants, their API keys, and the policies of their calls. Locks nothing.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
set local role ledgerd_owner;

create table access_tenants (
    tenant_id  integer not null,
    name       text collate "C" not null,
    created_at timestamptz not null default clock_timestamp(),
    constraint access_tenants_pkey primary key (tenant_id),
    constraint access_tenants_name_key unique (name),
    constraint access_tenants_name_check check (name ~ '^[a-z0-9][a-z0-9-]{0,62}$')
);
comment on table access_tenants is 'Tenants. Nothing is shared between two of them.';
comment on column access_tenants.tenant_id is
    'Number of the tenant, the first column of the primary keys. A new tenant gets the greatest number plus 1.';
comment on column access_tenants.name is 'Name of the tenant, for people.';
comment on column access_tenants.created_at is 'When it was created.';

create table access_api_keys (
    tenant_id    integer not null,
    key_id       text collate "C" not null,
    principal    text collate "C" not null,
    role         text collate "C" not null,
    scopes       text[] collate "C",
    call_rate    integer,
    call_limit   integer,
    secret_hash  bytea not null,
    created_at   timestamptz not null default clock_timestamp(),
    created_by   text collate "C" not null,
    expires_at   timestamptz,
    revoked_at   timestamptz,
    revoked_by   text collate "C",
    used_at      timestamptz,
    secret_digest text collate "C" not null generated always as (encode(sha256(secret_hash), 'hex')) stored,
    constraint access_api_keys_pkey primary key (tenant_id, key_id),
    constraint access_api_keys_tenant_fkey foreign key (tenant_id) references access_tenants (tenant_id),
    constraint access_api_keys_role_check check (role in ('read', 'write', 'admin', 'operator')),
    constraint access_api_keys_principal_check check (principal ~ '^[!-~]{1,64}$'),
    constraint access_api_keys_scopes_check check (cardinality(scopes) between 1 and 100),
    constraint access_api_keys_call_rate_check check (call_rate between 1 and 1000000),
    constraint access_api_keys_call_limit_check check (call_limit between 1 and 1000000),
    constraint access_api_keys_secret_hash_check check (octet_length(secret_hash) = 32),
    constraint access_api_keys_created_by_check check (octet_length(created_by) between 1 and 200),
    constraint access_api_keys_revoked_check check ((revoked_at is null) = (revoked_by is null)),
    constraint access_api_keys_finite_check check (isfinite(created_at) and isfinite(expires_at)
        and isfinite(revoked_at) and isfinite(used_at))
);
comment on table access_api_keys is 'API keys. The secret is shown once when made; only its SHA-256 is kept.';
comment on column access_api_keys.tenant_id is 'Tenant whose rows the key gives access to.';
comment on column access_api_keys.key_id is 'Public part of the key.';
comment on column access_api_keys.principal is
    'Caller that the key belongs to. Request keys are scoped by principal, so that an API key can be rotated '
    'between a call and its retry.';
comment on column access_api_keys.role is
    'read; write: reads and changes; admin: also administers the tenant; operator: administers all tenants, and may '
    'do nothing else.';
comment on column access_api_keys.scopes is
    'Scopes of the key, such as ledger.transfer(from=user:*); null: all that its role allows.';
comment on column access_api_keys.call_rate is 'Calls a second that a server admits; null: no limit.';
comment on column access_api_keys.call_limit is 'Calls in flight that a server admits; null: no limit.';
comment on column access_api_keys.secret_hash is 'SHA-256 of the secret part.';
comment on column access_api_keys.created_at is 'When it was created.';
comment on column access_api_keys.created_by is
    'Creator: TENANT/PRINCIPAL of a call, or the database login of a command.';
comment on column access_api_keys.expires_at is 'From then on it is refused; null: it does not expire.';
comment on column access_api_keys.revoked_at is 'When it was revoked; null: it is not.';
comment on column access_api_keys.revoked_by is 'Revoker, as in created_by; null: it is not revoked.';
comment on column access_api_keys.used_at is
    'When it was last used, to a minute or so. Written beside the calls: the last uses before a crash may be missing.';
comment on column access_api_keys.secret_digest is
    'SHA-256 of secret_hash, in hex. The audit log records it, so that a changed secret is noticed. It authenticates '
    'no caller.';

-- The rights of a key can shrink, but never grow.
-- +goose StatementBegin
create function access_keep_api_key() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
    as $$
begin
    -- secret_digest is generated after triggers have run
    if (to_jsonb(new) - '{expires_at,revoked_at,revoked_by,used_at,secret_digest}'::text[])
            is distinct from (to_jsonb(old) - '{expires_at,revoked_at,revoked_by,used_at,secret_digest}'::text[]) then
        raise exception 'the rights of API key % cannot change: create another key', old.key_id
            using errcode = 'LD005';
    end if;
    if old.revoked_at is not null
            and (new.revoked_at, new.revoked_by) is distinct from (old.revoked_at, old.revoked_by) then
        raise exception 'API key % is revoked, and stays so', old.key_id using errcode = 'LD005';
    end if;
    if coalesce(new.expires_at, 'infinity') > coalesce(old.expires_at, 'infinity') then
        raise exception 'API key % cannot expire later than it does', old.key_id using errcode = 'LD005';
    end if;
    return new;
end
$$;
-- +goose StatementEnd
comment on function access_keep_api_key is
    'Trigger: refuses all changes of an API key except its first revocation, an earlier expiry, and the time of its '
    'last use.';
create trigger access_api_keys_keep before update on access_api_keys
    for each row execute function access_keep_api_key();

grant select on access_tenants, access_api_keys to ledgerd_app;
grant update (used_at) on access_api_keys to ledgerd_app;
grant select, insert on access_tenants, access_api_keys to ledgerd_admin;
grant update (expires_at, revoked_at, revoked_by) on access_api_keys to ledgerd_admin;
grant select on access_tenants to ledgerd_audit;
grant select (tenant_id, key_id, principal, role, scopes, call_rate, call_limit, created_at, created_by, expires_at,
    revoked_at, revoked_by, used_at, secret_digest) on access_api_keys to ledgerd_audit;

create table access_policies (
    tenant_id         integer not null,
    operation         text collate "C" not null,
    key_required      boolean not null default false,
    token_required    boolean not null default false,
    key_life_s        integer,
    approval_required boolean not null default false,
    approval_above    text collate "C",
    changed_at        timestamptz not null default clock_timestamp(),
    constraint access_policies_pkey primary key (tenant_id, operation),
    constraint access_policies_tenant_fkey foreign key (tenant_id) references access_tenants (tenant_id),
    constraint access_policies_operation_check check (operation ~ '^([a-z_]+\.[a-z_]+|\*)$'),
    constraint access_policies_key_life_s_check check (key_life_s between 60 and 2678400),
    constraint access_policies_approval_check check (not approval_required or operation <> '*'),
    constraint access_policies_approval_above_check check (approval_above is null
        or approval_required and approval_above ~ '^(0|[1-9][0-9]{0,37})(\.[0-9]{1,18})?$'
            and octet_length(approval_above) <= 39)
);
comment on table access_policies is 'Requirements of a tenant on mutations. Servers apply changes within 5 seconds.';
comment on column access_policies.tenant_id is 'Tenant.';
comment on column access_policies.operation is
    'Operation, such as ledger.transfer; * for all operations without a policy of their own.';
comment on column access_policies.key_required is 'True if calls without Idempotency-Key are refused.';
comment on column access_policies.token_required is 'True if calls without Submit-Token are refused.';
comment on column access_policies.key_life_s is
    'Life of request keys, in seconds, unless the call names one; null: the server''s --key-life.';
comment on column access_policies.approval_required is
    'True if calls are refused that another principal has not approved: see approval_requests.';
comment on column access_policies.approval_above is
    'Greatest amount that needs no approval, in units of the asset, such as 100.00; null: every call needs it.';
comment on column access_policies.changed_at is 'When it was created or changed.';
grant select on access_policies to ledgerd_app;
grant select, insert, delete on access_policies to ledgerd_admin;
grant update (key_required, token_required, key_life_s, approval_required, approval_above, changed_at)
    on access_policies to ledgerd_admin;
grant select on access_policies to ledgerd_audit;
reset role;

-- +goose Down
drop table access_policies;
drop table access_api_keys;
drop function access_keep_api_key;
drop table access_tenants;
