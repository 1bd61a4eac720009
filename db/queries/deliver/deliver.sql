-- What workers do with messages that are open. Arrays run in step; n is a position in them, from 1. Rows are looked
-- up laterally and changed by ctid, so that a plan made on an empty table stays right on a full one; the fence stands in
-- the outer condition too, since a row that changed meanwhile is looked at again under that condition alone.

-- name: PlanSteer :one
-- Settings of the statements that follow in the same round trip, which is one transaction, and its time.
select now()::timestamptz as now, set_config('lock_timeout', '2000', true), set_config('statement_timeout', '20000', true),
    set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true),
    set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true);

-- name: LanesDiscover :many
-- Every tenant, channel and priority with something open that is not parked, and since when the oldest of it is due:
-- one look into the index for each.
with recursive lanes as (
    (select f.tenant_id, f.channel, f.priority, f.due_at
    from notify_queue f
    where f.due_at is not null
    order by f.tenant_id, f.channel, f.priority, f.due_at
    limit 1)
    union all
    select g.tenant_id, g.channel, g.priority, g.due_at
    from lanes p
    cross join lateral (
        select l.tenant_id, l.channel, l.priority, l.due_at
        from notify_queue l
        where l.due_at is not null and (l.tenant_id, l.channel, l.priority) > (p.tenant_id, p.channel, p.priority)
        order by l.tenant_id, l.channel, l.priority, l.due_at
        limit 1
    ) g
)
select s.tenant_id::integer as tenant_id, s.channel::text as channel, s.priority::smallint as priority, s.due_at::timestamptz as due_at
from lanes s;

-- name: QueueTake :many
-- Takes what is due, the oldest of each lane from since on, and passes over what others are at. One that is found
-- sending is taken to be settled, which is no attempt. due_at and state are those from before.
update notify_queue q
set fence = q.fence + 1, attempts = q.attempts + case when y.state = 'sending' then 0 else 1 end, holder = @holder::text,
    due_at = now() + make_interval(secs => @lease_s::float8)
from (
    select u.n, d.tid, d.state, d.due_at, d.holder
    from (
        select generate_subscripts(@tenants::integer[], 1) as n, unnest(@tenants::integer[]) as tenant_id, unnest(@channels::text[]) as channel,
            unnest(@priorities::integer[]) as priority, unnest(@since::timestamptz[]) as since, unnest(@most::integer[]) as most
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
returning y.n, q.tenant_id, q.message_id, q.channel, q.priority, y.state::text as state, y.due_at::timestamptz as due_at,
    (y.holder is not null)::boolean as lapsed, q.fence, q.attempts, q.max_attempts, q.on_unknown, q.give_up_at,
    (q.give_up_at <= now())::boolean as given_up, q.month, q.contents_until, q.provider, q.unsure;

-- name: ContentsRead :many
-- What messages of one day say, the first ones up to so many bytes of them: of the others there is nothing here.
select s.n::integer as n, case when s.bytes <= @most_bytes::bigint then s.recipient else '' end::text as recipient,
    case when s.bytes <= @most_bytes then s.content else '' end::bytea as content
from (
    select u.n, c.recipient, c.content, sum(octet_length(c.content)) over (order by u.n) as bytes
    from (
        select generate_subscripts(@message_ids::bigint[], 1) as n, unnest(@tenants::integer[]) as tenant_id, unnest(@message_ids::bigint[]) as message_id
    ) u
    cross join lateral (
        select r.recipient, r.content
        from notify_contents r
        where r.tenant_id = u.tenant_id and r.message_id = u.message_id and r.contents_until = @contents_until::date
        offset 0
    ) c
) s;

-- name: AttemptMark :many
-- Writes down what is about to be asked, right before it is: one that may not be sent twice is being sent from now on, and
-- any other may be sent by the provider that is named. Only those that come back may be, and only those come back that are
-- leased for long enough. One may be marked again: its fence tells who did. What was given back has no holder: a mark that
-- comes late does not change it.
update notify_queue q
set state = case when y.provider = '' then 'sending' else q.state end, provider = coalesce(nullif(y.provider, ''), q.provider),
    unsure = q.unsure or y.provider <> ''
from (
    select u.n, u.fence, u.provider, l.tid
    from (
        select generate_subscripts(@message_ids::bigint[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
            unnest(@message_ids::bigint[]) as message_id, unnest(@fences::bigint[]) as fence, unnest(@need_us::bigint[]) as need_us,
            unnest(@providers::text[]) as provider
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

-- name: SentFinish :many
-- Messages that were sent: their rows go, and the proof stays. One that is not returned has been taken by others.
with found as (
    select u.n, u.provider, u.provider_message_id, l.tid, l.tenant_id, l.message_id, l.month, l.attempts
    from (
        select generate_subscripts(@message_ids::bigint[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
            unnest(@message_ids::bigint[]) as message_id, unnest(@fences::bigint[]) as fence, unnest(@providers::text[]) as provider,
            unnest(@provider_message_ids::text[]) as provider_message_id
    ) u
    cross join lateral (
        select i.ctid as tid, i.tenant_id, i.message_id, i.month, i.attempts
        from notify_queue i
        where i.tenant_id = u.tenant_id and i.message_id = u.message_id and i.fence = u.fence
        for update
        offset 0
    ) l
), gone as (
    delete from notify_queue q where q.ctid = any(array(select f.tid from found f)) returning q.message_id
), noted as (
    insert into notify_events (tenant_id, message_id, month, kind, attempt, provider, provider_message_id, at, instance)
    select f.tenant_id, f.message_id, f.month, 'sent', f.attempts, nullif(f.provider, ''), nullif(f.provider_message_id, ''), now(), @instance::text
    from found f
)
select o.n::integer as n, commit_expect((select count(*) from gone), (select count(*) from found))::text as checked
from found o;

-- name: SentSettle :many
-- Messages that were sent, of which another process found that nobody knew, or is about to: now somebody does. It took
-- them once, so their fence is one greater.
with found as (
    select u.n, u.provider, u.provider_message_id, l.tid, l.tenant_id, l.message_id, l.month, l.attempts
    from (
        select generate_subscripts(@message_ids::bigint[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
            unnest(@message_ids::bigint[]) as message_id, unnest(@fences::bigint[]) as fence, unnest(@providers::text[]) as provider,
            unnest(@provider_message_ids::text[]) as provider_message_id
    ) u
    cross join lateral (
        select i.ctid as tid, i.tenant_id, i.message_id, i.month, i.attempts
        from notify_queue i
        where i.tenant_id = u.tenant_id and i.message_id = u.message_id and i.fence = u.fence + 1 and i.state in ('sending', 'unknown')
        for update
        offset 0
    ) l
), gone as (
    delete from notify_queue q where q.ctid = any(array(select f.tid from found f)) returning q.message_id
), noted as (
    insert into notify_events (tenant_id, message_id, month, kind, attempt, provider, provider_message_id, at, instance)
    select f.tenant_id, f.message_id, f.month, 'sent', f.attempts, nullif(f.provider, ''), nullif(f.provider_message_id, ''), now(), @instance::text
    from found f
)
select o.n::integer as n, commit_expect((select count(*) from gone), (select count(*) from found))::text as checked
from found o;

-- name: FailedFinish :many
-- Messages that were not sent, or of which nobody knows, and those that are given back unsent, which have no kind. One
-- that would be tried again after its time is over is dead, or unknown if it may have been sent before. One that is
-- not returned has been taken by others, or was written before: then it has no holder any more.
with changed as (
    update notify_queue q
    set state = y.state, due_at = case when y.state in ('queued', 'failed') then now() + y.wait_us * interval '1 microsecond' end, holder = null,
        provider = nullif(y.provider, ''), unsure = y.unsure, code = case when y.kind = '' then q.code else nullif(y.code, '') end,
        attempts = case when y.kind = '' then greatest(q.attempts - 1, 0) else q.attempts end
    from (
        select u.n, u.fence, u.kind, u.wait_us, u.provider, u.provider_message_id, u.unsure, u.code, u.error, l.tid,
            case when u.kind <> '' and u.state = 'failed' and now() + u.wait_us * interval '1 microsecond' >= l.give_up_at
                then case when u.unsure then 'unknown' else 'dead' end else u.state end as state
        from (
            select generate_subscripts(@message_ids::bigint[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
                unnest(@message_ids::bigint[]) as message_id, unnest(@fences::bigint[]) as fence, unnest(@states::text[]) as state,
                unnest(@kinds::text[]) as kind, unnest(@wait_us::bigint[]) as wait_us, unnest(@providers::text[]) as provider,
                unnest(@provider_message_ids::text[]) as provider_message_id, unnest(@unsure::boolean[]) as unsure,
                unnest(@codes::text[]) as code, unnest(@errors::text[]) as error
        ) u
        cross join lateral (
            select i.ctid as tid, i.give_up_at
            from notify_queue i
            where i.tenant_id = u.tenant_id and i.message_id = u.message_id and i.fence = u.fence
            offset 0
        ) l
    ) y
    where q.ctid = y.tid and q.fence = y.fence and q.holder is not null
    returning y.n, q.tenant_id, q.message_id, q.month, q.state, q.attempts, y.kind, y.provider, y.provider_message_id, y.code, y.error
), noted as (
    insert into notify_events (tenant_id, message_id, month, kind, attempt, provider, provider_message_id, code, error, at, instance)
    select g.tenant_id, g.message_id, g.month, case when g.state in ('dead', 'unknown') then g.state else g.kind end, g.attempts, nullif(g.provider, ''),
        nullif(g.provider_message_id, ''), nullif(g.code, ''), nullif(g.error, ''), now(), @instance::text
    from changed g
    where g.kind <> ''
)
select o.n::integer as n, o.state from changed o;

-- name: ContentsForget :exec
-- What messages of one day said that are over, and that nobody may requeue.
delete from notify_contents c
using (
    select u.tenant_id, u.message_id
    from (select unnest(@tenants::integer[]) as tenant_id, unnest(@message_ids::bigint[]) as message_id) u
    where not exists (
        select from notify_queue i
        where i.tenant_id = u.tenant_id and i.message_id = u.message_id and i.due_at is not null
    )
    offset 0
) y
where c.tenant_id = y.tenant_id and c.message_id = y.message_id and c.contents_until = @contents_until::date;

-- name: ParkedCount :many
-- How many messages wait for a person or a report, up to 10,000 of them.
select c.channel, c.state, count(*) as messages
from (select p.channel, p.state from notify_queue p where p.due_at is null limit 10000) c
group by c.channel, c.state;

-- name: Hint :exec
select pg_notify('ledgerd_notify', @hints::text);
