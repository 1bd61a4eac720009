-- Statements of the workers that send queued messages. Arrays have the same length; n is a position in them, from 1.
-- Rows are found by a lateral sub-select and updated by ctid, so that a generic plan made on an empty table stays right
-- on a full one. The outer condition repeats the fence: if another transaction changed the row meanwhile, Postgres
-- checks only the outer condition again.

-- name: PlanSteer :one
-- Settings and time of a transaction, whose other statements follow in the same round trip. It is as durable as a
-- batch, because an attempt that a crash forgets would be made again. Plans are generic, as in batches: planning
-- SentEventInsert every time would take longer than running it.
select now()::timestamptz as now, set_config('ledgerd.tenants', @tenants::text, true),
    set_config('synchronous_commit', case when current_setting('synchronous_commit') in ('off', 'local')
        then 'on' else current_setting('synchronous_commit') end, true),
    set_config('client_min_messages', 'warning', true),
    set_config('lock_timeout', '2000', true),
    set_config('statement_timeout', '20000', true), set_config('enable_seqscan', 'off', true),
    set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true),
    set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
    set_config('plan_cache_mode', 'force_generic_plan', true), set_config('jit', 'off', true);

-- name: DueGroups :many
-- Every tenant, channel and priority with messages that are open and not parked, and since when the oldest one is
-- due. Each takes one index lookup.
with recursive due_groups as (
    (select f.tenant_id, f.channel, f.priority, f.due_at
    from notify_queue f
    where f.due_at is not null
    order by f.tenant_id, f.channel, f.priority, f.due_at
    limit 1)
    union all
    select g.tenant_id, g.channel, g.priority, g.due_at
    from due_groups p
    cross join lateral (
        select l.tenant_id, l.channel, l.priority, l.due_at
        from notify_queue l
        where l.due_at is not null and (l.tenant_id, l.channel, l.priority) > (p.tenant_id, p.channel, p.priority)
        order by l.tenant_id, l.channel, l.priority, l.due_at
        limit 1
    ) g
)
select s.tenant_id::integer as tenant_id, s.channel::text as channel, s.priority::smallint as priority,
    s.due_at::timestamptz as due_at
from due_groups s;

-- name: QueueTake :many
-- Leases due messages, the oldest of each group first, skipping locked rows. A message in the state sending is leased
-- to settle it, which does not count as an attempt. The returned due_at and state are the previous ones.
update notify_queue q
set fence = q.fence + 1, attempts = q.attempts + case when y.state = 'sending' then 0 else 1 end,
    holder = @holder::text, due_at = y.lease_expires_at
from (
    select u.n, d.tid, d.state, d.due_at, d.holder, now() as taken_at,
        now() + make_interval(secs => @lease_s::float8) as lease_expires_at
    from (
        select generate_subscripts(@tenants::integer[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
            unnest(@channels::text[]) as channel, unnest(@priorities::integer[]) as priority,
            unnest(@since::timestamptz[]) as since, unnest(@most::integer[]) as most
    ) u
    cross join lateral (
        select l.ctid as tid, l.state, l.due_at, l.holder
        from notify_queue l
        where l.tenant_id = u.tenant_id and l.channel = u.channel and l.priority = u.priority::smallint
            and l.due_at >= u.since and l.due_at <= now()
        order by l.due_at
        limit u.most
        for no key update skip locked
    ) d
) y
where q.ctid = y.tid
returning y.n, q.tenant_id, q.message_id, q.channel, q.priority, y.state::text as state,
    y.due_at::timestamptz as due_at, (y.holder is not null)::boolean as lapsed, q.fence, q.attempts, q.max_attempts,
    q.on_unknown, q.give_up_at, (q.give_up_at <= y.taken_at)::boolean as given_up, q.month, q.contents_until,
    q.provider, q.unsure;

-- name: ContentsRead :many
-- Contents of messages with the same contents_until, in order, up to a total number of bytes; contents beyond it are
-- returned empty. Expired contents are missing, even if they have not been deleted yet.
select s.n::integer as n, case when s.bytes <= @most_bytes::bigint then s.recipient else '' end::text as recipient,
    case when s.bytes <= @most_bytes then s.content else '' end::bytea as content
from (
    select u.n, c.recipient, c.content, sum(octet_length(c.content)) over (order by u.n) as bytes
    from (
        select generate_subscripts(@message_ids::bigint[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
            unnest(@message_ids::bigint[]) as message_id
    ) u
    cross join lateral (
        select r.recipient, r.content
        from notify_contents r
        where r.tenant_id = u.tenant_id and r.message_id = u.message_id and r.contents_until = @contents_until::date
            and r.contents_until > (now() at time zone 'UTC')::date
        offset 0
    ) c
) s;

-- name: AttemptMark :many
-- Records the provider of an attempt just before the request is sent, and sets the state to sending if the message must
-- not be sent twice. Only the returned messages may be sent: their leases last long enough. A message may be marked
-- again, with the same fence. A message whose lease was released has no holder, so a late mark does not change it.
update notify_queue q
set state = case when y.provider = '' then 'sending' else q.state end,
    provider = coalesce(nullif(y.provider, ''), q.provider), unsure = q.unsure or y.provider <> ''
from (
    select u.n, u.fence, u.provider, l.tid
    from (
        select generate_subscripts(@message_ids::bigint[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
            unnest(@message_ids::bigint[]) as message_id, unnest(@fences::bigint[]) as fence,
            unnest(@need_us::bigint[]) as need_us, unnest(@providers::text[]) as provider
    ) u
    cross join lateral (
        select i.ctid as tid
        from notify_queue i
        where i.tenant_id = u.tenant_id and i.message_id = u.message_id and i.fence = u.fence
            and i.due_at > now() + u.need_us * interval '1 microsecond'
        offset 0
    ) l
) y
where q.ctid = y.tid and q.fence = y.fence and q.holder is not null
returning y.n::integer as n;

-- The statements that follow come in pairs, in one transaction: the first one locks messages and inserts their
-- events, the second one finds the same rows, updates or deletes them, and returns them. A message that is not
-- returned was leased by another process meanwhile.

-- name: SentEventInsert :exec
-- Events of messages that were sent.
insert into notify_events (tenant_id, message_id, month, event_id, kind, attempt, provider, provider_message_id, at,
    instance)
select l.tenant_id, l.message_id, l.month, u.fence, 'sent', l.attempts, nullif(u.provider, ''),
    nullif(u.provider_message_id, ''), now(), @instance::text
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@message_ids::bigint[]) as message_id,
        unnest(@fences::bigint[]) as fence, unnest(@providers::text[]) as provider,
        unnest(@provider_message_ids::text[]) as provider_message_id
) u
cross join lateral (
    select i.tenant_id, i.message_id, i.month, i.attempts
    from notify_queue i
    where i.tenant_id = u.tenant_id and i.message_id = u.message_id and i.fence = u.fence
    for update
    offset 0
) l;

-- name: SentDelete :many
-- Deletes sent messages from the queue.
delete from notify_queue q
using (
    select u.n, u.fence, l.tid
    from (
        select generate_subscripts(@message_ids::bigint[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
            unnest(@message_ids::bigint[]) as message_id, unnest(@fences::bigint[]) as fence
    ) u
    cross join lateral (
        select i.ctid as tid
        from notify_queue i
        where i.tenant_id = u.tenant_id and i.message_id = u.message_id and i.fence = u.fence
        offset 0
    ) l
) y
where q.ctid = y.tid and q.fence = y.fence
returning y.n::integer as n;

-- name: LateEventInsert :exec
-- Events of messages that were sent, but whose lease expired meanwhile: another process leased them once, so their
-- fence is greater by one, and that process parks the message as unknown.
insert into notify_events (tenant_id, message_id, month, event_id, kind, attempt, provider, provider_message_id, at,
    instance)
select l.tenant_id, l.message_id, l.month, u.fence, 'sent', l.attempts, nullif(u.provider, ''),
    nullif(u.provider_message_id, ''), now(), @instance::text
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@message_ids::bigint[]) as message_id,
        unnest(@fences::bigint[]) as fence, unnest(@providers::text[]) as provider,
        unnest(@provider_message_ids::text[]) as provider_message_id
) u
cross join lateral (
    select i.tenant_id, i.message_id, i.month, i.attempts
    from notify_queue i
    where i.tenant_id = u.tenant_id and i.message_id = u.message_id and i.fence = u.fence + 1
        and i.state in ('sending', 'unknown')
    for update
    offset 0
) l;

-- name: LateDelete :exec
-- Deletes the messages of LateEventInsert from the queue.
delete from notify_queue q
using (
    select u.fence, l.tid
    from (
        select unnest(@tenants::integer[]) as tenant_id, unnest(@message_ids::bigint[]) as message_id,
            unnest(@fences::bigint[]) as fence
    ) u
    cross join lateral (
        select i.ctid as tid
        from notify_queue i
        where i.tenant_id = u.tenant_id and i.message_id = u.message_id and i.fence = u.fence + 1
            and i.state in ('sending', 'unknown')
        offset 0
    ) l
) y
where q.ctid = y.tid and q.fence = y.fence + 1 and q.state in ('sending', 'unknown');

-- name: FailedEventInsert :exec
-- Events of messages that were not sent, or whose outcome is unknown. A message whose next attempt would be after its
-- give_up_at is dead, or unknown if an attempt may have sent it. Messages that are returned unsent, without a kind,
-- get no event.
insert into notify_events (tenant_id, message_id, month, event_id, kind, attempt, provider, provider_message_id,
    failure_code, failure_text, at, instance)
select l.tenant_id, l.message_id, l.month, u.fence,
    case when u.state in ('dead', 'unknown') then u.state
        when u.state <> 'failed' or now() + u.wait_us * interval '1 microsecond' < l.give_up_at then u.kind
        when u.unsure then 'unknown' else 'dead' end,
    l.attempts, nullif(u.provider, ''), nullif(u.provider_message_id, ''), nullif(u.failure_code, ''),
    nullif(u.failure_text, ''), now(), @instance::text
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@message_ids::bigint[]) as message_id,
        unnest(@fences::bigint[]) as fence, unnest(@states::text[]) as state, unnest(@kinds::text[]) as kind,
        unnest(@wait_us::bigint[]) as wait_us, unnest(@providers::text[]) as provider,
        unnest(@provider_message_ids::text[]) as provider_message_id, unnest(@unsure::boolean[]) as unsure,
        unnest(@failure_codes::text[]) as failure_code, unnest(@failure_texts::text[]) as failure_text
) u
cross join lateral (
    select i.tenant_id, i.message_id, i.month, i.attempts, i.give_up_at
    from notify_queue i
    where i.tenant_id = u.tenant_id and i.message_id = u.message_id and i.fence = u.fence and i.holder is not null
    for no key update
    offset 0
) l
where u.kind <> '';

-- name: FailedUpdate :many
-- Ends the leases of the messages of FailedEventInsert, and of those that are returned unsent. A message without a
-- holder was updated before.
update notify_queue q
set state = y.state, due_at = case when y.state in ('queued', 'failed') then y.retry_at end, holder = null,
    provider = nullif(y.provider, ''), unsure = y.unsure,
    failure_code = case when y.kind = '' then q.failure_code else nullif(y.failure_code, '') end,
    attempts = case when y.kind = '' then greatest(q.attempts - 1, 0) else q.attempts end
from (
    select u.n, u.fence, u.kind, u.retry_at, u.provider, u.unsure, u.failure_code, l.tid,
        case when u.kind <> '' and u.state = 'failed' and u.retry_at >= l.give_up_at
            then case when u.unsure then 'unknown' else 'dead' end else u.state end as state
    from (
        select generate_subscripts(@message_ids::bigint[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
            unnest(@message_ids::bigint[]) as message_id, unnest(@fences::bigint[]) as fence,
            unnest(@states::text[]) as state, unnest(@kinds::text[]) as kind,
            now() + unnest(@wait_us::bigint[]) * interval '1 microsecond' as retry_at,
            unnest(@providers::text[]) as provider, unnest(@unsure::boolean[]) as unsure,
            unnest(@failure_codes::text[]) as failure_code
    ) u
    cross join lateral (
        select i.ctid as tid, i.give_up_at
        from notify_queue i
        where i.tenant_id = u.tenant_id and i.message_id = u.message_id and i.fence = u.fence
        offset 0
    ) l
) y
where q.ctid = y.tid and q.fence = y.fence and q.holder is not null
returning y.n::integer as n, q.state;

-- name: ContentsForget :exec
-- Deletes contents of one day whose messages have ended and cannot be requeued.
delete from notify_contents c
using (
    select u.tenant_id, u.message_id
    from (select unnest(@tenants::integer[]) as tenant_id, unnest(@message_ids::bigint[]) as message_id) u
    left join lateral (
        select i.due_at from notify_queue i where i.tenant_id = u.tenant_id and i.message_id = u.message_id offset 0
    ) q on true
    where q.due_at is null
    offset 0
) y
where c.tenant_id = y.tenant_id and c.message_id = y.message_id and c.contents_until = @contents_until::date;

-- name: ParkedCount :many
-- Number of parked messages that wait for an operator or a delivery report, up to 10,000.
select c.channel, c.state, count(*) as messages
from (select p.channel, p.state from notify_queue p where p.due_at is null limit 10000) c
group by c.channel, c.state;

-- name: Hint :exec
select pg_notify('ledgerd_notify', @hints::text);
