-- What a tenant requires of calls, by operation. Locks nothing.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
set local role ledgerd_owner;

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
comment on column access_policies.operation is 'Operation, such as ledger.transfer; * for all operations without a policy of their own.';
comment on column access_policies.key_required is 'True if calls without Idempotency-Key are refused.';
comment on column access_policies.token_required is 'True if calls without Submit-Token are refused.';
comment on column access_policies.key_life_s is 'Life of request keys, in seconds, unless the call names one; null: the server''s --key-life.';
comment on column access_policies.updated_at is 'When it was created or changed.';
grant select, insert, delete on access_policies to ledgerd_app;
grant update (key_required, token_required, key_life_s, updated_at) on access_policies to ledgerd_app;
grant select on access_policies to ledgerd_audit;
reset role;

-- +goose Down
drop table access_policies;
