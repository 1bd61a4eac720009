-- Every content in the inbox belongs to a message and matches its hash.
select c.tenant_id, c.consumer_group, c.message_id, c.part,
    case when m.message_id is null then 'there is no such message' end as problem,
    encode(c.content_sha256, 'hex') as content_sha256, encode(m.content_sha256, 'hex') as expected_sha256
from inbox_contents c
left join inbox_messages m on m.tenant_id = c.tenant_id and m.consumer_group = c.consumer_group
    and m.message_id = c.message_id
    and m.part = c.part
where m.message_id is null or m.content_sha256 is distinct from c.content_sha256
