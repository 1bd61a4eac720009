-- The text of a query over all partitioned tables that the role may read. Running it returns no rows, but locks the
-- tables, so that no partition can be dropped before the end of the transaction.
select string_agg('select from only ' || c.oid::regclass, ' union all ')
from pg_class c
join pg_class l on l.relnamespace = c.relnamespace
where l.oid = $1 and c.relkind = 'p' and has_any_column_privilege(c.oid, 'select')
