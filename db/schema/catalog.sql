-- The objects that guard the data, and the rights to them, as rows: kind, object, definition. The search_path must be
-- pg_catalog and then the schema of ledger_accounts, so that names are relative to that schema. expected.txt has the
-- rows of a freshly migrated database. A row with a non-null "expected" is not in the file: it is a part of a
-- partition, and differs from the same part of its parent.
with recursive roles as (
    select oid, rolname from pg_roles
    where rolname in ('ledgerd_owner', 'ledgerd_app', 'ledgerd_admin', 'ledgerd_audit')
), memberships(member, role) as (
    -- From Postgres 16 on, a membership may give nothing but the right to grant it.
    select m.member, m.roleid from pg_auth_members m cross join to_jsonb(m) j
    where coalesce((j ->> 'inherit_option')::boolean or (j ->> 'set_option')::boolean, true)
), reach(login, role) as (
    select r.oid, r.oid from pg_roles r
    union
    select c.login, m.role from reach c join memberships m on m.member = c.role
), powers(login, role, power) as (
    -- As in CheckRole and CheckAdminRole of internal/pg.
    select c.login, own.rolname, p.power
    from (select a.login, o.rolname from reach a join roles o on o.oid = a.role
        where o.rolname in ('ledgerd_app', 'ledgerd_admin')) own
    join reach c on c.login = own.login
    join pg_roles r on r.oid = c.role
    cross join lateral (values
        (r.rolsuper, 'superuser'), (r.rolcreaterole, 'createrole'), (r.rolreplication, 'replication'),
        (r.rolbypassrls, 'bypassrls'),
        (r.rolname in ('ledgerd_owner', 'ledgerd_audit', 'pg_read_all_data', 'pg_write_all_data',
            'pg_read_server_files', 'pg_write_server_files', 'pg_execute_server_program', 'pg_maintain',
            'pg_create_subscription'),
            'member of ' || r.rolname),
        (r.rolname = 'ledgerd_admin' and own.rolname = 'ledgerd_app', 'member of ledgerd_admin')
    ) p(has, power)
    where p.has
), users(oid) as (
    -- Our roles and the logins of servers and auditors, but not those of roles that migrate.
    select oid from roles
    union
    select login from reach where role in (select oid from roles)
    except
    select c.login from reach c join roles o on o.oid = c.role where o.rolname = 'ledgerd_owner'
        and c.login not in (select oid from roles)
), schemas as (
    -- The path is the name as search_path has it, without needless quotes, which quote_all_identifiers adds.
    select n.oid, 'main' as name, regexp_replace(quote_ident(n.nspname), '"([a-z0-9_]+)"', '\1') as path
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    where c.oid = to_regclass('ledger_accounts')
    union all
    select n.oid, n.nspname, null from pg_namespace n where n.nspname = 'audit'
), modes(mark, mode) as (
    -- Of triggers and rules; O is enabled.
    values ('D'::"char", 'disabled'), ('R', 'for replicas only'), ('A', 'always')
), of_extensions as (
    select d.classid, d.objid from pg_depend d where d.deptype = 'e'
), tree(oid, parent) as (
    select c.oid, null::oid from pg_class c join schemas s on s.oid = c.relnamespace
    where c.relkind not in ('i', 'I', 't') and not c.relispartition
        and not exists (select from of_extensions e where e.classid = 'pg_class'::regclass and e.objid = c.oid)
    union
    -- In any schema: a query of a table also reads the tables that inherit from it.
    select i.inhrelid, i.inhparent from tree t join pg_inherits i on i.inhparent = t.oid
    where not exists (select from pg_class c where c.oid = i.inhrelid and c.relkind in ('i', 'I'))
), relations as (
    select c.*, c.oid::regclass::text as name, t.parent,
        -- Created by goose, in its own form, and owned by the role that migrated.
        c.relname in ('goose_db_version', 'goose_db_version_id_seq') as of_goose
    from tree t join pg_class c on c.oid = t.oid
), functions as (
    select p.*, p.oid::regprocedure::text as name from pg_proc p join schemas s on s.oid = p.pronamespace
    where not exists (select from of_extensions e where e.classid = 'pg_proc'::regclass and e.objid = p.oid)
), parts(relid, kind, key, name, definition) as (
    -- A partition must have the parts of its parent, by kind and key, with the same definitions. Postgres chooses other
    -- names for its indexes and constraints: their key is their definition.
    select r.oid, case r.relkind when 'r' then 'table' when 'p' then 'table' when 'v' then 'view'
            when 'm' then 'materialized view' when 'f' then 'foreign table' when 'S' then 'sequence' else 'type' end,
        '', null,
        concat_ws(', ', case when not r.of_goose then 'owner ' || pg_get_userbyid(r.relowner) else 'any owner' end,
            case r.relpersistence when 'u' then 'unlogged' when 't' then 'temporary' end)
    from relations r
    union all
    select r.oid, 'column', a.attname, a.attname, concat_ws(' ', format_type(a.atttypid, a.atttypmod),
        case when a.attcollation <> t.typcollation then 'collate ' || a.attcollation::regcollation end,
        case when a.attnotnull then 'not null' end,
        case a.attidentity when 'a' then 'identity always' when 'd' then 'identity by default' end,
        case a.attgenerated when '' then 'default' when 's' then 'generated, stored' else 'generated, virtual' end
            || ' ' || pg_get_expr(d.adbin, d.adrelid))
    from relations r
    join pg_attribute a on a.attrelid = r.oid
    join pg_type t on t.oid = a.atttypid
    left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
    where a.attnum > 0 and not a.attisdropped and r.relkind <> 'S' and not r.of_goose
    union all
    -- From Postgres 18 on, NOT NULL is a constraint too. The column has it already, unless rows may violate it.
    select r.oid, 'constraint', case when r.relkind = 'p' or r.relispartition then d.definition else c.conname end,
        c.conname, d.definition
    from relations r
    join pg_constraint c on c.conrelid = r.oid
    cross join lateral pg_get_constraintdef(c.oid, true) as d(definition)
    where not r.of_goose and c.contype <> 't' and (c.contype <> 'n' or not c.convalidated)
        and (c.conparentid = 0 or r.relispartition)
    union all
    select r.oid, 'index', case when r.relkind = 'p' or r.relispartition then d.definition else c.relname end,
        c.relname, d.definition
    from relations r
    join pg_index i on i.indrelid = r.oid
    join pg_class c on c.oid = i.indexrelid
    cross join lateral (
        select concat_ws(' ', case when i.indisunique then 'unique' end,
            substring(pg_get_indexdef(c.oid, 0, true) from ' (USING .*)'),
            case when not i.indimmediate then 'deferred' end,
            case when not (i.indisvalid and i.indisready and i.indislive) then 'invalid' end)
    ) as d(definition)
    where not r.of_goose
    union all
    select r.oid, 'trigger', t.tgname, t.tgname, concat_ws(' ',
        replace(substring(pg_get_triggerdef(t.oid, true) from ' ((BEFORE|AFTER|INSTEAD OF) .*)'),
            ' ON ' || r.name || ' ', ' '), m.mode)
    from relations r
    join pg_trigger t on t.tgrelid = r.oid
    left join modes m on m.mark = t.tgenabled
    where not t.tgisinternal
    union all
    -- The triggers of foreign keys, which ALTER TABLE ... DISABLE TRIGGER ALL disables too.
    select r.oid, 'trigger', 'of ' || c.conname, 'of ' || c.conname, string_agg(distinct m.mode, ', ')
    from relations r
    join pg_trigger t on t.tgrelid = r.oid
    join pg_constraint c on c.oid = t.tgconstraint
    join modes m on m.mark = t.tgenabled
    where t.tgisinternal
    group by r.oid, c.conname
    union all
    -- _RETURN is the query of a view.
    select r.oid, 'rule', w.rulename, w.rulename,
        concat_ws(' ', case when w.rulename <> '_RETURN' then pg_get_ruledef(w.oid, true) end, m.mode)
    from relations r
    join pg_rewrite w on w.ev_class = r.oid
    left join modes m on m.mark = w.ev_enabled
    where w.rulename <> '_RETURN' or w.ev_enabled <> 'O'
), rights(object, owner, acl, initial) as (
    select r.name, r.relowner, r.relacl, null::aclitem[] from relations r
    union all
    select 'function ' || f.name, f.proowner, coalesce(f.proacl, acldefault('f', f.proowner)), null from functions f
    union all
    select 'schema ' || s.name, n.nspowner, n.nspacl, null from schemas s join pg_namespace n on n.oid = s.oid
    union all
    select 'database', d.datdba, coalesce(d.datacl, acldefault('d', d.datdba)), null from pg_database d
    where d.datname = current_database()
    union all
    select 'new ' || case d.defaclobjtype when 'r' then 'relations' when 'S' then 'sequences' when 'f' then 'functions'
            when 'T' then 'types' else 'objects' end || ' of ' || pg_get_userbyid(d.defaclrole)
            || coalesce(' in ' || s.name, ''), d.defaclrole, d.defaclacl, null
    from pg_default_acl d
    left join schemas s on s.oid = d.defaclnamespace
    where s.oid is not null or d.defaclrole in (select oid from roles)
    union all
    select 'parameter ' || p.parname, 0, p.paracl, null from pg_parameter_acl p
    union all
    select 'system function ' || p.oid::regprocedure, p.proowner, p.proacl,
        coalesce(i.initprivs, acldefault('f', p.proowner))
    from pg_proc p
    left join pg_init_privs i on i.classoid = 'pg_proc'::regclass and i.objoid = p.oid
    where p.pronamespace = 'pg_catalog'::regnamespace and p.proacl is not null
    union all
    select 'system table ' || c.relname, c.relowner, c.relacl, coalesce(i.initprivs, acldefault('r', c.relowner))
    from pg_class c
    left join pg_init_privs i on i.classoid = 'pg_class'::regclass and i.objoid = c.oid and i.objsubid = 0
    where c.relnamespace = 'pg_catalog'::regnamespace and c.relacl is not null
), grants(object, grantee, privilege) as (
    -- Without those of the owner, who can grant itself everything.
    select r.object, a.grantee, a.privilege_type || case when a.is_grantable then ' with grant option' else '' end
    from rights r, aclexplode(r.acl) a
    where case
        when r.object = 'database' then a.privilege_type in ('CREATE', 'TEMPORARY')
            and (a.grantee = 0 or a.grantee in (select oid from users))
        -- Whether PUBLIC has USAGE depends on the choice of the schema.
        when r.object = 'schema main' then a.grantee in (select oid from roles)
            or a.privilege_type = 'CREATE' and (a.grantee = 0 or a.grantee in (select oid from users))
        when r.object ~ '^parameter ' then a.grantee = 0 or a.grantee in (select oid from users)
        when r.object ~ '^system ' then a.grantee in (select oid from users) or a.grantee = 0 and not exists (
            select from aclexplode(r.initial) i where i.grantee = 0 and i.privilege_type = a.privilege_type)
        else a.grantee <> r.owner end
    union all
    select r.name, a.grantee, a.privilege_type || case when a.is_grantable then ' with grant option' else '' end
        || ' (' || string_agg(c.attname, ', ' order by c.attname) || ')'
    from relations r
    join pg_attribute c on c.attrelid = r.oid
    cross join aclexplode(c.attacl) a
    where a.grantee <> r.relowner
    group by r.name, a.grantee, a.privilege_type, a.is_grantable
), loaded(setrole, setdatabase, super, main, name, value, path) as (
    select d.setrole, d.setdatabase, coalesce(r.rolsuper, false), s.path, split_part(c, '=', 1), v.value,
        regexp_replace(regexp_replace(v.value, '"([a-z0-9_$]+)"', '\1', 'g'), ', *', ',', 'g') || ','
    from pg_db_role_setting d
    cross join unnest(d.setconfig) c
    cross join substr(c, strpos(c, '=') + 1) v(value)
    left join pg_roles r on r.oid = d.setrole
    join schemas s on s.name = 'main'
    where d.setdatabase in (0, (select b.oid from pg_database b where b.datname = current_database()))
        and (d.setrole = 0 or r.rolsuper or exists (select from reach m join roles o on o.oid = m.role
            where m.login = d.setrole))
), facts(kind, object, definition, expected) as (
    select p.kind, case p.kind when 'column' then r.name || '.' || p.name else concat_ws(' on ', p.name, r.name) end,
        p.definition, null
    from parts p
    join relations r on r.oid = p.relid
    where not r.relispartition
    union all
    select x.kind, case x.kind when 'column' then r.name || '.' || x.name else concat_ws(' on ', x.name, r.name) end,
        x.definition, x.expected
    from relations r
    cross join lateral (
        select coalesce(p.kind, q.kind), coalesce(p.name, q.name), coalesce(p.definition, 'none'),
            coalesce(q.definition, 'none')
        from (select * from parts where relid = r.oid) p
        full join (select * from parts where relid = r.parent) q on q.kind = p.kind and q.key = p.key
        where p.definition is distinct from q.definition
    ) x(kind, name, definition, expected)
    where r.relispartition
    union all
    select 'partition key', r.name, pg_get_partkeydef(r.oid), null from relations r where r.relkind = 'p'
    union all
    -- The partitions that notify_keep_partitions creates are legal.
    select 'child', r.name, 'of ' || r.parent::regclass, null from relations r
    where r.parent is not null
        and not (r.relispartition and r.name ~ ('^' || r.parent::regclass || '_([0-9]{6}|[0-9]{8})$'))
    union all
    select 'range', r.name, concat_ws(' ', s.seqtypid::regtype, 'from', s.seqmin, 'to', s.seqmax, 'start', s.seqstart,
        'increment', s.seqincrement, case when s.seqcycle then 'cycle' end), null
    from relations r
    join pg_sequence s on s.seqrelid = r.oid
    where not r.of_goose
    union all
    -- In Postgres 15, and not later, the columns of a view of one table are qualified. After a dump and restore the
    -- constants in later parts of a UNION have names.
    select 'query', r.name, 'sha256 ' || encode(sha256(convert_to(case when a.alias is null then v.query
        else regexp_replace(v.query, '\m' || a.alias || '\.', '', 'g') end, 'UTF8')), 'hex')
        || coalesce(' with ' || array_to_string(r.reloptions, ', '), ''), null
    from relations r
    cross join lateral regexp_replace(pg_get_viewdef(r.oid, true), '(::[a-z ]+) AS [a-z0-9]+(?=[,\n])', '\1', 'g')
        v(query)
    cross join lateral substring(v.query from '\n   FROM (?:[^ ]+ )?([a-z0-9_]+)[;\n]') a(alias)
    where r.relkind in ('v', 'm')
    union all
    select 'row security', r.name, concat_ws(', ', case when r.relrowsecurity then 'enabled' end,
        case when r.relforcerowsecurity then 'forced' end), null
    from relations r
    where r.relrowsecurity or r.relforcerowsecurity
    union all
    select 'policy', p.polname || ' on ' || r.name, concat_ws(' ',
        case when p.polpermissive then 'permissive' else 'restrictive' end,
        case p.polcmd when 'r' then 'select' when 'a' then 'insert' when 'w' then 'update' when 'd' then 'delete'
            else 'all' end,
        'to', (select string_agg(case o when 0 then 'PUBLIC' else pg_get_userbyid(o) end, ', '
            order by pg_get_userbyid(o)) from unnest(p.polroles) o),
        'using ' || pg_get_expr(p.polqual, p.polrelid),
        'check ' || pg_get_expr(p.polwithcheck, p.polrelid)), null
    from relations r
    join pg_policy p on p.polrelid = r.oid
    union all
    select 'function', f.name, concat_ws(' ', case f.prokind when 'p' then 'procedure' when 'a' then 'aggregate'
            when 'w' then 'window function' else 'function' end,
        '(' || pg_get_function_arguments(f.oid) || ')', 'returns ' || pg_get_function_result(f.oid), 'owner',
        pg_get_userbyid(f.proowner), (select l.lanname from pg_language l where l.oid = f.prolang),
        case f.provolatile when 'i' then 'immutable' when 's' then 'stable' else 'volatile' end,
        case f.proparallel when 's' then 'parallel safe' when 'r' then 'parallel restricted' end,
        case when f.proisstrict then 'strict' end, case when f.proleakproof then 'leakproof' end,
        case when f.prosecdef then 'security definer' end,
        case when f.prosupport <> 0 then 'support ' || f.prosupport end,
        (select string_agg('set ' || replace(regexp_replace(c, '"([a-z0-9_]+)"', '\1', 'g'),
            'search_path=' || s.path || ',', 'search_path=main,'), ' ') from unnest(f.proconfig) c),
        'sha256', encode(sha256(convert_to(concat(f.prosrc, f.probin, pg_get_function_sqlbody(f.oid)), 'UTF8')),
            'hex')), null
    from functions f
    join schemas s on s.name = 'main'
    union all
    -- Other objects with names in our schemas: the migrations create none, and casts have none.
    select 'type', t.oid::regtype::text, 'owner ' || pg_get_userbyid(t.typowner), null
    from pg_type t
    join schemas s on s.oid = t.typnamespace
    where t.typrelid = 0 and t.typelem = 0
        and not exists (select from of_extensions e where e.classid = 'pg_type'::regclass and e.objid = t.oid)
    union all
    select 'operator', o.oid::regoperator::text, 'of ' || o.oprcode, null
    from pg_operator o
    where (o.oprnamespace in (select oid from schemas)
            or o.oprnamespace = 'pg_catalog'::regnamespace and o.oid >= 16384)
        and not exists (select from of_extensions e where e.classid = 'pg_operator'::regclass and e.objid = o.oid)
    union all
    select 'cast', c.castsource::regtype || ' as ' || c.casttarget::regtype, 'by ' || c.castfunc::regprocedure, null
    from pg_cast c
    where c.oid >= 16384
        and not exists (select from of_extensions e where e.classid = 'pg_cast'::regclass and e.objid = c.oid)
    union all
    select 'function', p.oid::regprocedure::text, 'in pg_catalog', null
    from pg_proc p
    where p.pronamespace = 'pg_catalog'::regnamespace and p.oid >= 16384
        and not exists (select from of_extensions e where e.classid = 'pg_proc'::regclass and e.objid = p.oid)
    union all
    select 'event trigger', t.evtname, 'on ' || t.evtevent || ' execute ' || t.evtfoid::regprocedure, null
    from pg_event_trigger t
    where t.evtenabled <> 'D'
        and not exists (select from of_extensions e where e.classid = 'pg_event_trigger'::regclass and e.objid = t.oid)
    union all
    -- A subscription writes without firing our triggers.
    select 'subscription', u.subname || ' on ' || r.name, 'writes it', null
    from relations r
    join pg_subscription_rel l on l.srrelid = r.oid
    join pg_subscription u on u.oid = l.srsubid
    union all
    -- The operator chooses the owners of the database and of the main schema, within limits.
    select 'schema', s.name, 'owner ' || pg_get_userbyid(n.nspowner), null
    from schemas s
    join pg_namespace n on n.oid = s.oid
    where s.name = 'audit'
        or n.nspowner in (select u.oid from users u except select o.oid from roles o where o.rolname = 'ledgerd_owner')
    union all
    -- The schema audit exists once, so a database has one ledger. Another may deceive a role by its search_path.
    select 'schema', n.nspname, 'has a table ledger_accounts too', null
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    where c.relname = 'ledger_accounts' and c.relnamespace not in (select s.oid from schemas s)
    union all
    select 'database', d.datname, 'owner ' || pg_get_userbyid(d.datdba), null
    from pg_database d
    where d.datname = current_database()
        and d.datdba in (select u.oid from users u except select o.oid from roles o where o.rolname = 'ledgerd_owner')
    union all
    select 'grant', g.object || ' to ' || case g.grantee when 0 then 'PUBLIC' else pg_get_userbyid(g.grantee) end,
        string_agg(g.privilege, ', ' order by g.privilege), null
    from grants g
    group by g.object, g.grantee
    union all
    select 'role', r.rolname, concat_ws(', ', case when r.rolcanlogin then 'login' else 'nologin' end,
        case when r.rolinherit then 'inherit' else 'noinherit' end, case when r.rolsuper then 'superuser' end,
        case when r.rolcreaterole then 'createrole' end, case when r.rolcreatedb then 'createdb' end,
        case when r.rolreplication then 'replication' end, case when r.rolbypassrls then 'bypassrls' end), null
    from pg_roles r
    where r.oid in (select oid from roles)
    union all
    select 'membership', r.rolname || ' in ' || pg_get_userbyid(m.roleid), 'member', null
    from roles r
    join pg_auth_members m on m.member = r.oid
    union all
    select 'login', pg_get_userbyid(p.login),
        'member of ' || max(p.role) || ', ' || string_agg(distinct p.power, ', ' order by p.power), null
    from powers p
    where p.login not in (select oid from roles)
    group by p.login
    union all
    select 'setting', s.name, s.reset_val, null from pg_settings s where s.name in ('session_replication_role')
    union all
    -- Settings of roles and of the database that weaken the guards.
    select 'setting', d.name || ' of ' || concat_ws(' in ', case d.setrole when 0 then 'all roles'
        else pg_get_userbyid(d.setrole) end, case when d.setdatabase <> 0 then 'this database' end), d.value, null
    from loaded d
    where d.name in ('session_replication_role', 'row_security', 'role', 'session_preload_libraries',
            'local_preload_libraries', 'transform_null_equals', 'allow_system_table_mods', 'ignore_system_indexes')
        -- No schema may precede pg_catalog and our schema, except the one with the name of the role.
        or d.name = 'search_path' and not d.super and (
            not starts_with(regexp_replace(d.path, '^([$]user,|pg_catalog,)*', ''), d.main || ',')
            or d.path ~ ',pg_catalog,' and d.path !~ '^[$]user,pg_catalog,')

)
-- Functions of catalogs return null for an object that was dropped after the query began.
select f.kind, f.object, regexp_replace(coalesce(f.definition, 'dropped'), '\s+', ' ', 'g') as definition, f.expected
from facts f
order by f.kind collate "C", f.object collate "C", f.definition collate "C"
