-- Row-level security: a second isolation of tenants, ADR 17. Locks every table with tenants for a moment.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
set local role ledgerd_owner;

-- The service sees and writes rows of the tenants in the setting ledgerd.tenants, a multirange such as {[1,1],[7,7]};
-- {(,)} means all tenants, and no setting means none. The setting is read once per statement. The planner cannot use
-- the condition with an index, and estimates that every row satisfies it, so that policies do not change the plans of
-- statements. Administration spans tenants; its privileges limit it to tables of settings. Partitions need no policies:
-- the service has no privileges on them, only on their parents.
-- +goose StatementBegin
do $$
declare
    r regclass;
begin
    for r in
        select c.oid::regclass from pg_class c join pg_attribute a on a.attrelid = c.oid
        where c.relnamespace = quote_ident(current_schema())::regnamespace and c.relkind in ('r', 'p')
            and not c.relispartition and a.attname = 'tenant_id' and not a.attisdropped
        order by c.relname
    loop
        execute format($policy$
            create policy tenants on %s to ledgerd_app using (nullif(tenant_id <@ (
                select nullif(current_setting('ledgerd.tenants', true), '')::int4multirange
            ), false) is not null)$policy$, r);
        execute format('create policy administrators on %s to ledgerd_admin using (true)', r);
        execute format('create policy auditors on %s for select to ledgerd_audit using (true)', r);
        execute format('alter table %s enable row level security', r);
    end loop;
end
$$;
-- +goose StatementEnd
reset role;

-- +goose Down
-- +goose StatementBegin
do $$
declare
    r record;
begin
    for r in
        select p.polrelid::regclass as relation, p.polname from pg_policy p join pg_class c on c.oid = p.polrelid
        where c.relnamespace = quote_ident(current_schema())::regnamespace
    loop
        execute format('drop policy %I on %s', r.polname, r.relation);
        execute format('alter table %s disable row level security', r.relation);
    end loop;
end
$$;
-- +goose StatementEnd
