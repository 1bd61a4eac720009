-- Reads of the inbox: one tenant, one snapshot. Expired messages are not found.

-- name: MessageGet :many
select m.inbox_id, m.consumer_group, m.message_id, m.part, m.topic, m.content_sha256, m.state, m.holder, m.fence,
    m.lease_expires_at, m.attempts, m.max_attempts, m.backoff_ms, m.max_backoff_ms, m.retry_at, m.failure_text,
    m.result, m.life_ms, m.received_at, m.begun_at, m.finished_at, m.requeued_at, m.expires_at, m.principal,
    m.request_id, m.last_request_id, c.content
from inbox_messages m
left join inbox_contents c on c.tenant_id = m.tenant_id and c.consumer_group = m.consumer_group
    and c.message_id = m.message_id
    and c.part = m.part and c.expires_at > now()
where m.tenant_id = @tenant_id and m.consumer_group = @consumer_group and m.message_id = @message_id and m.part = @part
    and (m.expires_at is null or m.expires_at > now());

-- name: MessagePage :many
-- Newest first. Reads a limited number of rows, whether they match or not.

select s.inbox_id, s.consumer_group, s.message_id, s.part, s.topic, s.content_sha256, s.state, s.holder, s.fence,
    s.lease_expires_at, s.attempts, s.max_attempts, s.backoff_ms, s.max_backoff_ms, s.retry_at, s.failure_text,
    s.result, s.life_ms, s.received_at, s.begun_at, s.finished_at, s.requeued_at, s.expires_at, s.principal,
    s.request_id, s.last_request_id
from (
    select m.* from inbox_messages m
    where m.tenant_id = @tenant_id and m.inbox_id < @before
    order by m.inbox_id desc
    limit @scan
) s
where (s.expires_at is null or s.expires_at > now()) and (@only_group::text = '' or s.consumer_group = @only_group)
    and (@only_topic::text = '' or s.topic = @only_topic) and (@only_state::text = '' or s.state = @only_state)
order by s.inbox_id desc
limit @count;

-- name: MessagePageEnd :one
-- How many rows MessagePage read, and the last one of them.
select count(*) as scanned, coalesce(min(s.inbox_id), 0)::bigint as last
from (
    select m.inbox_id from inbox_messages m
    where m.tenant_id = @tenant_id and m.inbox_id < @before
    order by m.inbox_id desc
    limit @scan
) s;

-- name: MessagePageOpen :many
-- MessagePage for messages that have not succeeded, which are few and have an index of their own.
select s.inbox_id, s.consumer_group, s.message_id, s.part, s.topic, s.content_sha256, s.state, s.holder, s.fence,
    s.lease_expires_at, s.attempts, s.max_attempts, s.backoff_ms, s.max_backoff_ms, s.retry_at, s.failure_text,
    s.result, s.life_ms, s.received_at, s.begun_at, s.finished_at, s.requeued_at, s.expires_at, s.principal,
    s.request_id, s.last_request_id
from inbox_messages s
where s.tenant_id = @tenant_id and s.state = @only_state::text and s.state <> 'succeeded' and s.inbox_id < @before
    and (@only_group::text = '' or s.consumer_group = @only_group) and (@only_topic::text = '' or s.topic = @only_topic)
order by s.inbox_id desc
limit @count;

-- name: RequeuedDue :many
-- Messages that were requeued by an operator and may be taken now: the broker does not deliver them again.
select m.message_id, m.part, m.topic, c.content
from inbox_messages m
join inbox_contents c on c.tenant_id = m.tenant_id and c.consumer_group = m.consumer_group
    and c.message_id = m.message_id
    and c.part = m.part and c.expires_at > now()
where m.tenant_id = @tenant_id and m.state = 'failed' and m.state <> 'succeeded' and m.consumer_group = @consumer_group
    and m.requeued_at is not null and m.retry_at <= now()
order by m.inbox_id
limit @count;
