-- Three roles, so that the service runs with the least of them: ledgerd_owner owns everything and
-- migrates, ledgerd_app is what the service may do, ledgerd_audit only reads. None can log in: make
-- login roles of your own as members. Locks nothing. Roles belong to the whole cluster, so they may
-- be there already, also made at the same moment by another database's migration.

-- +goose Up
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
end
$$;
-- +goose StatementEnd
grant usage, create on schema public to ledgerd_owner;
grant usage on schema public to ledgerd_app, ledgerd_audit;
-- So that the service can tell whether the schema is the one it needs.
grant select on goose_db_version to ledgerd_app, ledgerd_audit;

-- +goose Down
revoke select on goose_db_version from ledgerd_app, ledgerd_audit;
revoke usage on schema public from ledgerd_app, ledgerd_audit;
revoke usage, create on schema public from ledgerd_owner;
