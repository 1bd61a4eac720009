-- Enables row-level security, as the migrations do.
do $$
declare
    r regclass;
begin
    for r in select distinct p.polrelid from pg_policy p loop
        execute format('alter table %s enable row level security', r);
    end loop;
end
$$
