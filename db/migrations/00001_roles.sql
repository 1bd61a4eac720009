-- Roles and the schema audit. ledgerd_owner owns all objects, ledgerd_app has the rights of the service, ledgerd_admin
-- those of administration alone (tenants, API keys, policies, limits), and ledgerd_audit can only read. None of them
-- can log in: create login roles that are members. Locks nothing.
-- Roles belong to the whole cluster: another database's migration may have created them, or do so at the same time.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
-- +goose StatementBegin
do $$
declare
    r text;
begin
    foreach r in array array['ledgerd_owner', 'ledgerd_app', 'ledgerd_admin', 'ledgerd_audit'] loop
        begin
            execute format('create role %I nologin', r);
        exception when duplicate_object or unique_violation then
            null;
        end;
    end loop;
    if not pg_has_role(current_user, 'ledgerd_owner', 'member') then
        execute format('grant ledgerd_owner to %I', current_user);
    end if;
    -- Otherwise a caller could create a temporary object that shadows one of ours in functions that run as the owner.
    execute format('revoke temporary on database %I from public', current_database());
    execute format('revoke create on schema %I from public', current_schema());
    execute format('grant usage, create on schema %I to ledgerd_owner', current_schema());
    execute format('grant usage on schema %I to ledgerd_app, ledgerd_admin, ledgerd_audit', current_schema());
end
$$;
-- +goose StatementEnd
-- Servers compare the applied migrations with their own. Any member of ledgerd_owner may migrate.
grant select on goose_db_version to ledgerd_app, ledgerd_admin, ledgerd_audit;
grant select, insert, delete on goose_db_version to ledgerd_owner;

-- The views of each domain are in its migration. They show names of tenants instead of numbers, and decimals instead
-- of minor units. `ledgerd verify` does not use them: an attacker who can change rows can also replace a view.
create schema audit authorization ledgerd_owner;
set local role ledgerd_owner;
comment on schema audit is 'Views for auditors: start with audit.accounts, audit.statement, audit.requests.';
grant usage on schema audit to ledgerd_audit;

create function audit.decimal(minor numeric, scale integer) returns numeric
    language sql
    immutable strict parallel safe
    as $$ select minor * ('1e-' || scale)::numeric $$;
comment on function audit.decimal is 'Formats an amount of minor units as a decimal: audit.decimal(1230, 2) is 12.30.';
reset role;

-- +goose Down
drop schema audit cascade;
revoke select on goose_db_version from ledgerd_app, ledgerd_admin, ledgerd_audit;
revoke select, insert, delete on goose_db_version from ledgerd_owner;
-- +goose StatementBegin
do $$
begin
    execute format('revoke usage on schema %I from ledgerd_app, ledgerd_admin, ledgerd_audit', current_schema());
    execute format('revoke usage, create on schema %I from ledgerd_owner', current_schema());
    execute format('grant temporary on database %I to public', current_database());
end
$$;
-- +goose StatementEnd
