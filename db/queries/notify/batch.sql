-- Statements on messages in batches. All rows of a kind are in one statement, sorted by key. n is the position in the
-- arrays, from 1.

-- name: LimitRead :many
-- Limits of tenants. Not locked: a change applies to batches that read it afterwards.
select u.tenant_id::integer as tenant_id, l.channel, l.scope, l.window_s, l.max_messages
from (select unnest(@tenants::integer[]) as tenant_id) u
cross join lateral (
    select x.channel, x.scope, x.window_s, x.max_messages from notify_limits x where x.tenant_id = u.tenant_id offset 0
) l;

-- name: DeadFind :many
-- Some dead messages of tenants that can still be sent, of a channel and with a code if these are given.
select u.n::integer as n, m.message_id
from (
    select generate_subscripts(@tenants::integer[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@channels::text[]) as channel, unnest(@failure_codes::text[]) as failure_code
) u
cross join lateral (
    (select x.message_id from notify_queue x
    where u.failure_code = '' and x.tenant_id = u.tenant_id and x.state = 'dead' and x.due_at is null
        and (u.channel = '' or x.channel = u.channel) and x.on_unknown <> 'never'
            and x.contents_until > (now() at time zone 'UTC')::date
    order by x.failure_code, x.message_id
    limit 1000)
    union all
    (select x.message_id from notify_queue x
    where u.failure_code <> '' and x.tenant_id = u.tenant_id and x.state = 'dead' and x.due_at is null
        and x.failure_code = u.failure_code and (u.channel = '' or x.channel = u.channel) and x.on_unknown <> 'never'
            and x.contents_until > (now() at time zone 'UTC')::date
    order by x.message_id
    limit 1000)
) m;

-- name: SentFind :many
-- Messages by the ids that providers gave them, from their events. If an id has several messages, the newest comes
-- last.
select u.n::integer as n, m.message_id
from (
    select generate_subscripts(@tenants::integer[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@providers::text[]) as provider, unnest(@provider_message_ids::text[]) as provider_message_id
) u
cross join lateral (
    select x.message_id from notify_events x
    where x.tenant_id = u.tenant_id and x.provider = u.provider and x.provider_message_id = u.provider_message_id
        and x.kind = 'sent' and x.provider_message_id is not null
    offset 0
) m
order by u.n, m.message_id;

-- name: FingerprintLock :many
select u.n::integer as n, f.ctid, f.message_id, f.expires_at
from (
    select generate_subscripts(@tenants::integer[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@channels::text[]) as channel, unnest(@fingerprints::bytea[]) as fingerprint
) u
cross join lateral (
    select x.ctid, x.message_id, x.expires_at from notify_fingerprints x
    where x.tenant_id = u.tenant_id and x.channel = u.channel and x.fingerprint = u.fingerprint
    offset 0
    for no key update
) f;

-- name: QueueLock :many
select u.n::integer as n, m.ctid, m.state, m.due_at, m.holder, m.on_unknown, m.unsure, m.give_up_at
from (
    select generate_subscripts(@tenants::integer[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@message_ids::bigint[]) as message_id
) u
cross join lateral (
    select x.ctid, x.state, x.due_at, x.holder, x.on_unknown, x.unsure, x.give_up_at
    from notify_queue x
    where x.tenant_id = u.tenant_id and x.message_id = u.message_id
    offset 0
    for no key update
) m;

-- name: ReportLock :exec
-- Locks message ids, so that reports of one message are applied one after another, even after it has left the queue.
select pg_advisory_xact_lock(77016, hashtext(u.tenant_id::text || '/' || u.message_id::text))
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@message_ids::bigint[]) as message_id
) u
order by hashtext(u.tenant_id::text || '/' || u.message_id::text);

-- name: CounterLock :many
select u.n::integer as n, c.ctid, c.slot, c.counts, c.expires_at
from (
    select generate_subscripts(@tenants::integer[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@channels::text[]) as channel, unnest(@scopes::text[]) as scope,
        unnest(@windows_s::integer[]) as window_s, unnest(@subjects::bytea[]) as subject
) u
cross join lateral (
    select x.ctid, x.slot, x.counts, x.expires_at from notify_counters x
    where x.tenant_id = u.tenant_id and x.channel = u.channel and x.scope = u.scope and x.window_s = u.window_s
        and x.subject = u.subject
    offset 0
    for no key update
) c;

-- name: NameLookup :many
-- Messages with these biz_nos, once all row locks are held.
select u.n::integer as n, m.message_id, m.request_hash
from (
    select generate_subscripts(@tenants::integer[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@biz_nos::text[]) as biz_no
) u
cross join lateral (
    select x.message_id, x.request_hash from notify_names x where x.tenant_id = u.tenant_id and x.biz_no = u.biz_no
    offset 0
) m;

-- name: MessageLoad :many
-- Messages by id, with their row in the queue and the event of their outcome: cancelled or the newest report, or else
-- sent, or else dead or unknown, which count only once the message has left the queue. The time of the batch determines
-- the month, and thus the partition.
select u.n::integer as n, m.month, m.channel, m.business_type, m.biz_no, m.template, m.locale, m.recipient_hash,
    m.recipient_hint, m.content_hash, m.priority, m.on_unknown, m.max_attempts, m.not_before, m.give_up_at,
    m.contents_until, m.accepted_at, m.principal, m.request_id, coalesce(o.state, '')::text as state,
    coalesce(o.attempts, 0)::integer as attempts, coalesce(o.max_attempts, 0)::integer as open_max_attempts,
    o.due_at, coalesce(o.give_up_at, '0001-01-01 00:00:00+00')::timestamptz as open_give_up_at,
    coalesce(o.provider, '')::text as open_provider, coalesce(o.failure_code, '')::text as open_failure_code,
    coalesce(e.kind, '')::text as ended, coalesce(e.provider, '')::text as ended_provider,
    coalesce(e.failure_code, '')::text as ended_failure_code
from (
    select generate_subscripts(@tenants::integer[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@message_ids::bigint[]) as message_id
) u
cross join lateral (
    select date_trunc('month', x.recorded_at at time zone 'UTC')::date as month
    from commit_batches x where x.batch_id = u.message_id >> 14 and x.commands > 0
    offset 0
) b
cross join lateral (
    select x.* from notify_messages x
    where x.tenant_id = u.tenant_id and x.message_id = u.message_id and x.month = b.month
    offset 0
) m
left join lateral (
    select x.state, x.attempts, x.max_attempts, x.due_at, x.give_up_at, x.provider, x.failure_code from notify_queue x
    where x.tenant_id = u.tenant_id and x.message_id = u.message_id
    offset 0
) o on true
left join lateral (
    select x.kind, x.provider, x.failure_code from notify_events x
    where x.tenant_id = u.tenant_id and x.message_id = u.message_id and x.month = b.month
        and (x.kind in ('sent', 'cancelled', 'delivered', 'undelivered') or x.kind in ('dead', 'unknown')
            and o.state is null)
    order by x.kind in ('dead', 'unknown'), x.kind <> 'sent' desc, x.at desc, x.event_id desc
    limit 1
) e on true
order by u.n;

-- name: FingerprintRenew :exec
-- Reuses fingerprints whose window has ended, or whose message will not be sent.
with updated as (
    update notify_fingerprints f set message_id = u.message_id, expires_at = u.expires_at
    from (
        select unnest(@tids::tid[]) as tid, unnest(@message_ids::bigint[]) as message_id,
            unnest(@expires_at::timestamptz[]) as expires_at
    ) u
    where f.ctid = u.tid
    returning 1
)
select commit_expect(count(*), cardinality(@tids::tid[])) from updated;

-- name: CounterUpdate :exec
with updated as (
    update notify_counters c set slot = u.slot, counts = u.counts::integer[], expires_at = u.expires_at
    from (
        select unnest(@tids::tid[]) as tid, unnest(@slots::bigint[]) as slot, unnest(@counts::text[]) as counts,
            unnest(@expires_at::timestamptz[]) as expires_at
    ) u
    where c.ctid = u.tid
    returning 1
)
select commit_expect(count(*), cardinality(@tids::tid[])) from updated;

-- name: QueueUpdate :exec
-- Returns messages to the queue. The fence grows, so that results of an earlier holder are refused.
with updated as (
    update notify_queue m set state = 'queued', due_at = @now::timestamptz, holder = null, fence = m.fence + 1,
        attempts = 0, unsure = false, give_up_at = u.give_up_at
    from (
        select unnest(@tids::tid[]) as tid, unnest(@give_up_at::timestamptz[]) as give_up_at
    ) u
    where m.ctid = u.tid
    returning 1
)
select commit_expect(count(*), cardinality(@tids::tid[])) from updated;

-- name: QueueDelete :exec
with deleted as (
    delete from notify_queue where ctid = any(@tids::tid[])
    returning 1
)
select commit_expect(count(*), cardinality(@tids::tid[])) from deleted;

-- name: NameInsert :exec
insert into notify_names (tenant_id, biz_no, message_id, request_hash)
select u.tenant_id, u.biz_no, u.message_id, u.request_hash
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@biz_nos::text[]) as biz_no,
        unnest(@message_ids::bigint[]) as message_id, unnest(@request_hashes::bytea[]) as request_hash
) u
order by u.tenant_id, u.biz_no collate "C";

-- name: FingerprintInsert :exec
insert into notify_fingerprints (tenant_id, channel, fingerprint, message_id, expires_at)
select u.tenant_id, u.channel, u.fingerprint, u.message_id, u.expires_at
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@channels::text[]) as channel,
        unnest(@fingerprints::bytea[]) as fingerprint, unnest(@message_ids::bigint[]) as message_id,
        unnest(@expires_at::timestamptz[]) as expires_at
) u
order by u.tenant_id, u.channel collate "C", u.fingerprint;

-- name: CounterInsert :exec
insert into notify_counters (tenant_id, channel, scope, window_s, subject, slot, counts, expires_at)
select u.tenant_id, u.channel, u.scope, u.window_s, u.subject, u.slot, u.counts::integer[], u.expires_at
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@channels::text[]) as channel,
        unnest(@scopes::text[]) as scope, unnest(@windows_s::integer[]) as window_s,
        unnest(@subjects::bytea[]) as subject, unnest(@slots::bigint[]) as slot, unnest(@counts::text[]) as counts,
        unnest(@expires_at::timestamptz[]) as expires_at
) u
order by u.tenant_id, u.channel collate "C", u.scope collate "C", u.window_s, u.subject;

-- name: MessageInsert :exec
insert into notify_messages (tenant_id, message_id, month, channel, business_type, biz_no, template, locale,
    recipient_hash, recipient_hint, content_hash, fingerprint, priority, on_unknown, max_attempts, not_before,
    give_up_at, contents_until, accepted_at, principal, request_id)
select u.tenant_id, u.message_id, @month::date, u.channel, u.business_type, nullif(u.biz_no, ''),
    nullif(u.template, ''), nullif(u.locale, ''), u.recipient_hash, u.recipient_hint, u.content_hash,
    nullif(u.fingerprint, ''), u.priority::smallint, u.on_unknown, u.max_attempts,
    nullif(u.not_before, '0001-01-01 00:00:00+00'), u.give_up_at, (u.contents_until at time zone 'UTC')::date,
    @accepted_at::timestamptz, u.principal, u.request_id
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@message_ids::bigint[]) as message_id,
        unnest(@channels::text[]) as channel, unnest(@business_types::text[]) as business_type,
        unnest(@biz_nos::text[]) as biz_no, unnest(@templates::text[]) as template,
        unnest(@locales::text[]) as locale, unnest(@recipient_hashes::bytea[]) as recipient_hash,
        unnest(@recipient_hints::text[]) as recipient_hint, unnest(@content_hashes::bytea[]) as content_hash,
        unnest(@fingerprints::bytea[]) as fingerprint, unnest(@priorities::integer[]) as priority,
        unnest(@on_unknowns::text[]) as on_unknown, unnest(@max_attempts::integer[]) as max_attempts,
        unnest(@not_before::timestamptz[]) as not_before, unnest(@give_up_at::timestamptz[]) as give_up_at,
        unnest(@contents_until::timestamptz[]) as contents_until, unnest(@principals::text[]) as principal,
        unnest(@request_ids::text[]) as request_id
) u;

-- name: ContentInsert :exec
insert into notify_contents (tenant_id, message_id, contents_until, recipient, content)
select u.tenant_id, u.message_id, (u.contents_until at time zone 'UTC')::date, u.recipient, u.content
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@message_ids::bigint[]) as message_id,
        unnest(@contents_until::timestamptz[]) as contents_until, unnest(@recipients::text[]) as recipient,
        unnest(@contents::bytea[]) as content
) u;

-- name: QueueInsert :exec
insert into notify_queue (tenant_id, message_id, channel, priority, state, due_at, holder, fence, attempts,
    max_attempts, on_unknown, give_up_at, month, contents_until)
select u.tenant_id, u.message_id, u.channel, u.priority::smallint, 'queued', u.due_at, nullif(u.holder, ''),
    u.fence, u.fence::integer, u.max_attempts, u.on_unknown, u.give_up_at, @month::date,
    (u.contents_until at time zone 'UTC')::date
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@message_ids::bigint[]) as message_id,
        unnest(@channels::text[]) as channel, unnest(@priorities::integer[]) as priority,
        unnest(@due_at::timestamptz[]) as due_at, unnest(@holders::text[]) as holder,
        unnest(@fences::bigint[]) as fence, unnest(@max_attempts::integer[]) as max_attempts,
        unnest(@on_unknowns::text[]) as on_unknown, unnest(@give_up_at::timestamptz[]) as give_up_at,
        unnest(@contents_until::timestamptz[]) as contents_until
) u;

-- name: EventInsert :exec
insert into notify_events (tenant_id, message_id, month, event_id, kind, attempt, provider, provider_message_id,
    failure_code, failure_text, at, instance, principal, request_id)
select u.tenant_id, u.message_id, (u.month at time zone 'UTC')::date, u.event_id, u.kind, 0, nullif(u.provider, ''),
    nullif(u.provider_message_id, ''), nullif(u.failure_code, ''), nullif(u.failure_text, ''), @now::timestamptz,
    @instance, u.principal, u.request_id
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@message_ids::bigint[]) as message_id,
        unnest(@months::timestamptz[]) as month, unnest(@event_ids::bigint[]) as event_id,
        unnest(@kinds::text[]) as kind, unnest(@providers::text[]) as provider,
        unnest(@provider_message_ids::text[]) as provider_message_id, unnest(@failure_codes::text[]) as failure_code,
        unnest(@failure_texts::text[]) as failure_text, unnest(@principals::text[]) as principal,
        unnest(@request_ids::text[]) as request_id
) u;
