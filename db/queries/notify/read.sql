-- Reads of the outbox: one tenant, one snapshot. Pages find ids; MessageLoad reads the messages.

-- name: NameFind :many
select message_id from notify_names where tenant_id = @tenant_id and biz_no = @biz_no;

-- name: EventList :many
-- The latest events of a message, newest first.
select e.kind, e.attempt, e.provider, e.provider_message_id, e.failure_code, e.failure_text, e.at, e.instance,
    e.principal, e.request_id
from notify_events e
where e.tenant_id = @tenant_id and e.message_id = @message_id and e.month = @month::date
order by e.at desc, e.event_id desc
limit 100;

-- name: ContentGet :many
-- Content and recipient of a message. Expired ones are missing, even if they have not been deleted yet.
select c.recipient, c.content
from notify_contents c
where c.tenant_id = @tenant_id and c.message_id = @message_id and c.contents_until = @contents_until::date
    and c.contents_until > (clock_timestamp() at time zone 'UTC')::date;

-- name: MessagePage :many
-- Newest first. Reads a limited number of rows, whether they match or not.
select s.message_id
from (
    select m.message_id, m.channel from notify_messages m
    where m.tenant_id = @tenant_id and m.message_id < @before
    order by m.message_id desc
    limit @scan
) s
where @only_channel::text = '' or s.channel = @only_channel
order by s.message_id desc
limit @count;

-- name: MessagePageEnd :one
-- How many rows MessagePage read, and the last one of them.
select count(*) as scanned, coalesce(min(s.message_id), 0)::bigint as last
from (
    select m.message_id from notify_messages m
    where m.tenant_id = @tenant_id and m.message_id < @before
    order by m.message_id desc
    limit @scan
) s;

-- name: MessagePageTo :many
-- Messages to one recipient, by an index of their own.
select m.message_id from notify_messages m
where m.tenant_id = @tenant_id and m.recipient_hash = @recipient_hash and m.message_id < @before
order by m.message_id desc
limit @count;

-- name: MessagePageOpen :many
-- Open messages, newest first. Reads a limited number of rows, whether they match or not.
select s.message_id
from (
    select o.message_id, o.channel, o.state, o.failure_code from notify_queue o
    where o.tenant_id = @tenant_id and o.message_id < @before
    order by o.message_id desc
    limit @scan
) s
where s.state = @only_state::text and (@only_channel::text = '' or s.channel = @only_channel)
    and (@only_failure_code::text = '' or s.failure_code = @only_failure_code)
order by s.message_id desc
limit @count;

-- name: MessagePageOpenEnd :one
-- How many rows MessagePageOpen read, and the last one of them.
select count(*) as scanned, coalesce(min(s.message_id), 0)::bigint as last
from (
    select o.message_id from notify_queue o
    where o.tenant_id = @tenant_id and o.message_id < @before
    order by o.message_id desc
    limit @scan
) s;

-- name: DeadGroups :many
-- Parked messages of a state, counted by code and channel: of up to 200 codes, and of each code the newest 10,000
-- messages. Skips from code to code by the index.
with recursive codes as (
    (select o.failure_code from notify_queue o
    where o.tenant_id = @tenant_id and o.state = @state and o.due_at is null
    order by o.failure_code
    limit 1)
    union all
    select (
        select o.failure_code from notify_queue o
        where o.tenant_id = @tenant_id and o.state = @state and o.due_at is null and o.failure_code > c.failure_code
        order by o.failure_code
        limit 1
    )
    from codes c where c.failure_code is not null
)
select g.failure_code::text as failure_code, x.channel, count(*)::integer as messages,
    max(x.message_id)::bigint as newest
from (select c.failure_code from codes c where c.failure_code is not null limit 200) g
cross join lateral (
    select o.channel, o.message_id from notify_queue o
    where o.tenant_id = @tenant_id and o.state = @state and o.due_at is null and o.failure_code = g.failure_code
    order by o.message_id desc
    limit 10000
) x
group by g.failure_code, x.channel
order by messages desc, g.failure_code, x.channel;
