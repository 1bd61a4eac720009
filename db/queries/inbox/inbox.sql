-- Statements on the inbox in batches. Arrays have the same length; n is a position in them, from 1. The tenant is
-- passed in an array and the index is reached by a lateral sub-select, so that a generic plan made on an empty table
-- stays right on a full one.

-- name: DeadFind :many
-- Some dead messages of groups, without locks; the batch locks them and reads them again. The limit is a constant,
-- because a generic plan for an unknown limit would read them all.
select u.n::integer as n, d.message_id, d.part
from (
    select generate_subscripts(@consumer_groups::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@consumer_groups::text[]) as consumer_group, unnest(@topics::text[]) as topic
) u
cross join lateral (
    select m.message_id, m.part from inbox_messages m
    where m.tenant_id = u.tenant_id and m.state = 'dead' and m.state <> 'succeeded'
        and m.consumer_group = u.consumer_group and (u.topic = '' or m.topic = u.topic)
    order by m.inbox_id
    limit 1000
) d;

-- name: MessageLock :many
-- Locks messages in the order of the arrays, which callers sort by tenant, group, id and part.
select u.n::integer as n, m.inbox_id, m.topic, m.content_sha256, m.state, m.holder, m.fence, m.lease_expires_at,
    m.attempts, m.max_attempts, m.backoff_ms, m.max_backoff_ms, m.retry_at, m.failure_text, m.result, m.life_ms,
    m.received_at, m.begun_at, m.finished_at, m.requeued_at, m.expires_at, m.principal, m.request_id,
    m.last_request_id
from (
    select generate_subscripts(@message_ids::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@consumer_groups::text[]) as consumer_group, unnest(@message_ids::text[]) as message_id,
        unnest(@parts::text[]) as part
) u
cross join lateral (
    select l.inbox_id, l.topic, l.content_sha256, l.state, l.holder, l.fence, l.lease_expires_at, l.attempts,
        l.max_attempts, l.backoff_ms, l.max_backoff_ms, l.retry_at, l.failure_text, l.result, l.life_ms, l.received_at,
        l.begun_at, l.finished_at, l.requeued_at, l.expires_at, l.principal, l.request_id, l.last_request_id
    from inbox_messages l
    where l.tenant_id = u.tenant_id and l.consumer_group = u.consumer_group and l.message_id = u.message_id
        and l.part = u.part
    offset 0
    for no key update
) m;

-- name: MessageInsert :exec
insert into inbox_messages (tenant_id, consumer_group, message_id, part, inbox_id, topic, content_sha256, state,
    holder, fence, lease_expires_at, attempts, max_attempts, backoff_ms, max_backoff_ms, retry_at, failure_text, result,
    life_ms, received_at, begun_at, finished_at, requeued_at, expires_at, principal, request_id, last_request_id)
select u.tenant_id, u.consumer_group, u.message_id, u.part, u.inbox_id, u.topic, nullif(u.content_sha256, ''),
    u.state, u.holder, u.fence, nullif(u.lease_expires_at, '0001-01-01 00:00:00+00'), u.attempts, u.max_attempts,
    u.backoff_ms, u.max_backoff_ms, nullif(u.retry_at, '0001-01-01 00:00:00+00'), nullif(u.failure_text, ''),
    nullif(u.result, ''), nullif(u.life_ms, 0), u.received_at, u.begun_at,
    nullif(u.finished_at, '0001-01-01 00:00:00+00'), nullif(u.requeued_at, '0001-01-01 00:00:00+00'),
    nullif(u.expires_at, '0001-01-01 00:00:00+00'), u.principal, u.request_id, u.last_request_id
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@consumer_groups::text[]) as consumer_group,
        unnest(@message_ids::text[]) as message_id, unnest(@parts::text[]) as part,
        unnest(@inbox_ids::bigint[]) as inbox_id, unnest(@topics::text[]) as topic,
        unnest(@content_sha256s::bytea[]) as content_sha256, unnest(@states::text[]) as state,
        unnest(@holders::text[]) as holder, unnest(@fences::bigint[]) as fence,
        unnest(@lease_expires_at::timestamptz[]) as lease_expires_at, unnest(@attempts::integer[]) as attempts,
        unnest(@max_attempts::integer[]) as max_attempts, unnest(@backoff_ms::bigint[]) as backoff_ms,
        unnest(@max_backoff_ms::bigint[]) as max_backoff_ms, unnest(@retry_at::timestamptz[]) as retry_at,
        unnest(@failure_texts::text[]) as failure_text, unnest(@results::text[]) as result,
        unnest(@life_ms::bigint[]) as life_ms,
        unnest(@received_at::timestamptz[]) as received_at, unnest(@begun_at::timestamptz[]) as begun_at,
        unnest(@finished_at::timestamptz[]) as finished_at, unnest(@requeued_at::timestamptz[]) as requeued_at,
        unnest(@expires_at::timestamptz[]) as expires_at, unnest(@principals::text[]) as principal,
        unnest(@request_ids::text[]) as request_id, unnest(@last_request_ids::text[]) as last_request_id
) u
order by u.tenant_id, u.consumer_group collate "C", u.message_id collate "C", u.part collate "C";

-- name: MessageUpdate :exec
-- Updates locked messages.
with updated as (
    update inbox_messages m
    set inbox_id = y.inbox_id, topic = y.topic, content_sha256 = nullif(y.content_sha256, ''), state = y.state,
        holder = y.holder, fence = y.fence, lease_expires_at = nullif(y.lease_expires_at, '0001-01-01 00:00:00+00'),
        attempts = y.attempts, max_attempts = y.max_attempts, backoff_ms = y.backoff_ms,
        max_backoff_ms = y.max_backoff_ms, retry_at = nullif(y.retry_at, '0001-01-01 00:00:00+00'),
        failure_text = nullif(y.failure_text, ''), result = nullif(y.result, ''), life_ms = nullif(y.life_ms, 0),
        received_at = y.received_at, begun_at = y.begun_at,
        finished_at = nullif(y.finished_at, '0001-01-01 00:00:00+00'),
        requeued_at = nullif(y.requeued_at, '0001-01-01 00:00:00+00'),
        expires_at = nullif(y.expires_at, '0001-01-01 00:00:00+00'), principal = y.principal,
        request_id = y.request_id, last_request_id = y.last_request_id
    from (
        select l.ctid as tid, u.*
        from (
            select unnest(@tenants::integer[]) as tenant_id, unnest(@consumer_groups::text[]) as consumer_group,
                unnest(@message_ids::text[]) as message_id, unnest(@parts::text[]) as part,
                unnest(@inbox_ids::bigint[]) as inbox_id, unnest(@topics::text[]) as topic,
                unnest(@content_sha256s::bytea[]) as content_sha256, unnest(@states::text[]) as state,
                unnest(@holders::text[]) as holder, unnest(@fences::bigint[]) as fence,
                unnest(@lease_expires_at::timestamptz[]) as lease_expires_at,
                unnest(@attempts::integer[]) as attempts, unnest(@max_attempts::integer[]) as max_attempts,
                unnest(@backoff_ms::bigint[]) as backoff_ms, unnest(@max_backoff_ms::bigint[]) as max_backoff_ms,
                unnest(@retry_at::timestamptz[]) as retry_at, unnest(@failure_texts::text[]) as failure_text,
                unnest(@results::text[]) as result, unnest(@life_ms::bigint[]) as life_ms,
                unnest(@received_at::timestamptz[]) as received_at,
                unnest(@begun_at::timestamptz[]) as begun_at,
                unnest(@finished_at::timestamptz[]) as finished_at,
                unnest(@requeued_at::timestamptz[]) as requeued_at,
                unnest(@expires_at::timestamptz[]) as expires_at, unnest(@principals::text[]) as principal,
                unnest(@request_ids::text[]) as request_id, unnest(@last_request_ids::text[]) as last_request_id
        ) u
        cross join lateral (
            select k.ctid from inbox_messages k
            where k.tenant_id = u.tenant_id and k.consumer_group = u.consumer_group and k.message_id = u.message_id
                and k.part = u.part
            offset 0
        ) l
    ) y
    where m.ctid = y.tid
    returning 1
)
select commit_expect(count(*), cardinality(@tenants::integer[])) from updated;

-- name: ContentPut :exec
-- Inserts contents of new messages. Contents that an expired message with the same id left are overwritten: its row
-- is locked.
insert into inbox_contents (tenant_id, consumer_group, message_id, part, content, expires_at)
select u.tenant_id, u.consumer_group, u.message_id, u.part, u.content, u.expires_at
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@consumer_groups::text[]) as consumer_group,
        unnest(@message_ids::text[]) as message_id, unnest(@parts::text[]) as part,
        unnest(@contents::bytea[]) as content, unnest(@expires_at::timestamptz[]) as expires_at
) u
order by u.tenant_id, u.consumer_group collate "C", u.message_id collate "C", u.part collate "C"
on conflict (tenant_id, consumer_group, message_id, part) do update set content = excluded.content,
    expires_at = excluded.expires_at;

-- name: ContentDrop :exec
-- Deletes contents of expired messages whose rows are locked, because their ids are used again or they are deleted.
delete from inbox_contents
where ctid = any(array(
    select l.ctid
    from (
        select unnest(@tenants::integer[]) as tenant_id, unnest(@consumer_groups::text[]) as consumer_group,
            unnest(@message_ids::text[]) as message_id, unnest(@parts::text[]) as part
    ) u
    cross join lateral (
        select c.ctid from inbox_contents c
        where c.tenant_id = u.tenant_id and c.consumer_group = u.consumer_group and c.message_id = u.message_id
            and c.part = u.part
        offset 0
    ) l
));

-- name: ContentClean :execrows
-- Deletes some expired contents, skipping locked rows.
delete from inbox_contents
where ctid = any(array(
    select c.ctid from inbox_contents c
    where c.expires_at < now()
    order by c.expires_at
    limit @batch::integer
    for update skip locked
));

-- name: MessageExpired :many
-- Locks some expired messages, oldest first, skipping locked rows.
select m.ctid, m.tenant_id, m.consumer_group, m.message_id, m.part from inbox_messages m
where m.expires_at < now()
order by m.expires_at
limit @batch::integer
for update skip locked;

-- name: MessageDelete :execrows
-- Deletes the messages of MessageExpired, after ContentDrop.
delete from inbox_messages where ctid = any(@tids::tid[]);

-- name: MessageOverdue :one
-- Age of the oldest expired message that is still there, in seconds; 0: there is none.
select coalesce((
    select extract(epoch from clock_timestamp() - x.expires_at)
    from inbox_messages x where x.expires_at < now() order by x.expires_at limit 1
), 0)::double precision as seconds;

-- name: ContentOverdue :one
-- Age of the oldest expired content that is still there, in seconds; 0: there is none.
select coalesce((
    select extract(epoch from clock_timestamp() - x.expires_at)
    from inbox_contents x where x.expires_at < now() order by x.expires_at limit 1
), 0)::double precision as seconds;
