-- Moves the first instances, as InstanceMove of the server does.
update machine_instances i
set state = case l.state when 'ping' then 'pong' else 'ping' end, came_from = l.state, revision = l.revision + 1,
    cause = 'cause', timer_at = null, timer_to = null, changed_at = now()
from (select 'm' || n % 5 as machine, 'order-' || n as key from generate_series(0, $1::integer - 1) n) u
cross join lateral (
    select x.ctid as tid, x.state, x.revision from machine_instances x
    where x.tenant_id = 1 and x.machine = u.machine and x.key = u.key offset 0
) l
where i.ctid = l.tid
