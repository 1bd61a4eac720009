-- Every sent code has its message, with the same channel and recipient hint, as long as messages of that month are
-- kept.
select c.tenant_id, c.type, c.recipient_hint, c.message_id
from notify_codes c
left join notify_messages m on m.tenant_id = c.tenant_id and m.message_id = c.message_id
where c.message_id is not null and c.state <> 'none' and (
    m.message_id is null and c.sent_at[cardinality(c.sent_at)] > (select min(x.accepted_at) from notify_messages x)
    or (m.channel, m.recipient_hint) is distinct from (c.channel, c.recipient_hint)
)
