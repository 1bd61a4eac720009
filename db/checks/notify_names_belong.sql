-- Every biz_no names a message, and the biz_no of a message names that message.
select coalesce(n.tenant_id, m.tenant_id) as tenant_id, coalesce(n.biz_no, m.biz_no) as biz_no, n.message_id,
    m.message_id as message_id_expected
from notify_names n
full join (select tenant_id, biz_no, message_id from notify_messages where biz_no is not null) m
    on m.tenant_id = n.tenant_id and m.biz_no = n.biz_no
where m.message_id is not null and n.message_id is distinct from m.message_id
    or m.message_id is null and not exists (
        -- a repeat by content
        select from notify_messages x where x.tenant_id = n.tenant_id and x.message_id = n.message_id
    ) and not exists (
        select from commit_batches b where b.batch_id = n.message_id >> 14 and not exists ( -- the month was dropped
            select from pg_class p
                where p.relname = 'notify_messages_' || to_char(b.recorded_at at time zone 'UTC', 'YYYYMM')
        )
    )
