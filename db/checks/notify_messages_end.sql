-- Every message is in the queue, or was sent, cancelled or reported, or was dead or unknown when its contents had been
-- expired for 30 days. A cancelled message was not sent, and is not in the queue. A delivered message is not in the
-- queue.
select m.tenant_id, m.message_id, q.state, e.kinds
from notify_messages m
left join notify_queue q on q.tenant_id = m.tenant_id and q.message_id = m.message_id
left join lateral (
    select array_agg(distinct x.kind) as kinds from notify_events x
    where x.tenant_id = m.tenant_id and x.message_id = m.message_id and x.month = m.month
        and (x.kind in ('sent', 'cancelled', 'delivered', 'undelivered')
            or x.kind in ('dead', 'unknown') and q.message_id is null
                and m.contents_until < (clock_timestamp() at time zone 'UTC')::date - 30)
) e on true
where q.message_id is null and e.kinds is null
    or 'cancelled' = any(e.kinds) and (q.message_id is not null or e.kinds && '{sent,delivered}')
    or q.message_id is not null and 'delivered' = any(e.kinds)
