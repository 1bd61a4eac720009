-- Every row of the queue belongs to a message with the same properties, and has its content.
select q.tenant_id, q.message_id, case when m.message_id is null then 'there is no such message'
    when c.message_id is null then 'it has no content' else 'it differs from its message' end as problem
from notify_queue q
left join notify_messages m on m.tenant_id = q.tenant_id and m.message_id = q.message_id and m.month = q.month
left join notify_contents c on c.tenant_id = q.tenant_id and c.message_id = q.message_id
    and c.contents_until = q.contents_until
where m.message_id is null
    or c.message_id is null and q.contents_until > (clock_timestamp() at time zone 'UTC')::date
        and not (q.on_unknown = 'never' and q.due_at is null)
    or (m.channel, m.priority, m.on_unknown, m.contents_until) is distinct
        from (q.channel, q.priority, q.on_unknown, q.contents_until)
