-- Statements that drop keys and indexes of the journal before a bulk load and make them again after it, keys first.
select format('alter table public.%I drop constraint %I', c.relname, k.conname) as drop,
    format('alter table public.%I add constraint %I %s', c.relname, k.conname, pg_get_constraintdef(k.oid)) as make
from pg_constraint k
join pg_class c on c.oid = k.conrelid
where k.conrelid in ('public.ledger_accounts'::regclass, 'public.ledger_transfers'::regclass,
    'public.ledger_entries'::regclass)
    and k.contype in ('p', 'u')
union all
select format('drop index public.%I', i.relname), pg_get_indexdef(i.oid)
from pg_index x
join pg_class i on i.oid = x.indexrelid
where x.indrelid in ('public.ledger_accounts'::regclass, 'public.ledger_transfers'::regclass,
    'public.ledger_entries'::regclass)
    and not exists (select from pg_constraint k where k.conindid = x.indexrelid)
