-- Every waiter belongs to a lock.
select w.tenant_id, w.name, w.ticket, w.request_id
from lock_waiters w
left join lock_locks l on l.tenant_id = w.tenant_id and l.name = w.name
where l.name is null
