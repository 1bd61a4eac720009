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
    'Number of the tenant, first column of every key: one more than the greatest.';
comment on column access_tenants.name is 'Name of the tenant, for people.';
comment on column access_tenants.created_at is 'When it was created.';

create table access_api_keys (
    tenant_id    integer not null,
    key_id       text collate "C" not null,
    principal    text collate "C" not null,
    role         text collate "C" not null,
    secret_hash  bytea not null,
    created_at   timestamptz not null default clock_timestamp(),
    revoked_at   timestamptz,
    constraint access_api_keys_pkey primary key (tenant_id, key_id),
    constraint access_api_keys_tenant_fkey foreign key (tenant_id) references access_tenants (tenant_id),
    constraint access_api_keys_role_check check (role in ('read', 'write', 'admin')),
    constraint access_api_keys_principal_check check (principal ~ '^[!-~]{1,64}$'),
    constraint access_api_keys_secret_hash_check check (octet_length(secret_hash) = 32)
);
comment on table access_api_keys is 'API keys. The secret is shown once when made; only its SHA-256 is kept.';
comment on column access_api_keys.tenant_id is 'Tenant whose rows the key opens.';
comment on column access_api_keys.key_id is 'Public part of the key.';
comment on column access_api_keys.principal is
    'Caller that the key belongs to. Request keys are scoped by principal, so that an API key can be rotated '
    'between a call and its retry.';
comment on column access_api_keys.role is 'read; write: reads and writes; admin: everything.';
comment on column access_api_keys.secret_hash is 'SHA-256 of the secret part.';
comment on column access_api_keys.created_at is 'When it was created.';
comment on column access_api_keys.revoked_at is 'When it was revoked; null: it is valid.';

grant select, insert on access_tenants, access_api_keys to ledgerd_app;
grant update (revoked_at) on access_api_keys to ledgerd_app;
grant select on access_tenants to ledgerd_audit;
grant select (tenant_id, key_id, principal, role, created_at, revoked_at) on access_api_keys to ledgerd_audit;

create table access_policies (
    tenant_id      integer not null,
    operation      text collate "C" not null,
    key_required   boolean not null default false,
    token_required boolean not null default false,
    key_life_s     integer,
    updated_at     timestamptz not null default clock_timestamp(),
    constraint access_policies_pkey primary key (tenant_id, operation),
    constraint access_policies_tenant_fkey foreign key (tenant_id) references access_tenants (tenant_id),
    constraint access_policies_operation_check check (operation ~ '^([a-z_]+\.[a-z_]+|\*)$'),
    constraint access_policies_key_life_s_check check (key_life_s between 60 and 2678400)
);
comment on table access_policies is 'What a tenant requires of mutations. Servers apply changes within 5 seconds.';
comment on column access_policies.tenant_id is 'Tenant.';
comment on column access_policies.operation is
    'Operation, such as ledger.transfer; * for all operations without a policy of their own.';
comment on column access_policies.key_required is 'True if calls without Idempotency-Key are refused.';
comment on column access_policies.token_required is 'True if calls without Submit-Token are refused.';
comment on column access_policies.key_life_s is
    'Life of request keys, in seconds, unless the call names one; null: the server''s --key-life.';
comment on column access_policies.updated_at is 'When it was created or changed.';
grant select, insert, delete on access_policies to ledgerd_app;
grant update (key_required, token_required, key_life_s, updated_at) on access_policies to ledgerd_app;
grant select on access_policies to ledgerd_audit;
reset role;

-- +goose Down
drop table access_policies;
drop table access_api_keys;
drop table access_tenants;
