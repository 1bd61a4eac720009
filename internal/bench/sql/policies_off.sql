-- Disables row-level security.
do $$
declare
    r regclass;
begin
    for r in select distinct p.polrelid from pg_policy p loop
        execute format('alter table %s disable row level security', r);
    end loop;
end
$$
