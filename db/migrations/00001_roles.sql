-- Three roles, so that the service runs with the least of them: ledgerd_owner owns everything and
-- migrates, ledgerd_app is what the service may do, ledgerd_audit only reads. None can log in: make
-- login roles of your own as members. Locks nothing. Roles belong to the whole cluster, so they may
-- be there already, also made at the same moment by another database's migration.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
-- +goose StatementBegin
do $$
declare
    r text;
begin
    foreach r in array array['ledgerd_owner', 'ledgerd_app', 'ledgerd_audit'] loop
        begin
            execute format('create role %I nologin', r);
        exception when duplicate_object or unique_violation then
            null;
        end;
    end loop;
    if not pg_has_role(current_user, 'ledgerd_owner', 'member') then
        execute format('grant ledgerd_owner to %I', current_user);
    end if;
    -- An object of the caller's could stand in for one of ours, in functions that run as the owner.
    execute format('revoke temporary on database %I from public', current_database());
    execute format('revoke create on schema %I from public', current_schema());
    execute format('grant usage, create on schema %I to ledgerd_owner', current_schema());
    execute format('grant usage on schema %I to ledgerd_app, ledgerd_audit', current_schema());
end
$$;
-- +goose StatementEnd
-- So that the service can tell whether the schema is the one it needs.
grant select on goose_db_version to ledgerd_app, ledgerd_audit;

-- +goose Down
revoke select on goose_db_version from ledgerd_app, ledgerd_audit;
-- +goose StatementBegin
do $$
begin
    execute format('revoke usage on schema %I from ledgerd_app, ledgerd_audit', current_schema());
    execute format('revoke usage, create on schema %I from ledgerd_owner', current_schema());
    execute format('grant temporary on database %I to public', current_database());
end
$$;
-- +goose StatementEnd
