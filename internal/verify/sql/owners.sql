-- Superusers and the members of ledgerd_owner, direct or not: they can change or disable every guard.
select r.rolname || case when r.rolsuper then ' (superuser)' else '' end
from pg_roles r
where r.rolname <> 'ledgerd_owner' and (r.rolsuper or pg_has_role(r.oid, 'ledgerd_owner', 'member'))
order by r.rolname
