-- Statements on verification codes, in batches and in the background task. Arrays have the same length; n is a
-- position in them, from 1. The tenant is passed in an array and the index is reached by a lateral sub-select, so
-- that a generic plan made on an empty table stays right on a full one.

-- name: CodeLock :many
-- Locks codes in the order of the arrays, which callers sort by tenant, type and recipient.
select u.n::integer as n, c.channel, c.recipient_hint, c.state, c.nonce, c.code_hash, c.tries, c.max_tries,
    c.tried_at, c.message_id, c.sent_at, c.expires_at, c.forget_at, c.principal, c.request_id, c.ctid
from (
    select generate_subscripts(@types::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@types::text[]) as type, unnest(@recipient_hashes::bytea[]) as recipient_hash
) u
cross join lateral (
    select l.channel, l.recipient_hint, l.state, l.nonce, l.code_hash, l.tries, l.max_tries, l.tried_at,
        l.message_id, l.sent_at, l.expires_at, l.forget_at, l.principal, l.request_id, l.ctid
    from notify_codes l
    where l.tenant_id = u.tenant_id and l.type = u.type and l.recipient_hash = u.recipient_hash
    offset 0
    for no key update
) c;

-- name: CodeUnsent :many
-- Messages that will certainly not arrive: dead, cancelled or reported as undelivered.
select u.n::integer as n
from (
    select generate_subscripts(@message_ids::bigint[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@message_ids::bigint[]) as message_id, unnest(@months::date[]) as month
) u
cross join lateral (
    select from notify_queue q
    where q.tenant_id = u.tenant_id and q.message_id = u.message_id and q.state = 'dead'
    offset 0
) d
union
select u.n::integer
from (
    select generate_subscripts(@message_ids::bigint[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@message_ids::bigint[]) as message_id, unnest(@months::date[]) as month
) u
cross join lateral (
    select from notify_events e
    where e.tenant_id = u.tenant_id and e.message_id = u.message_id and e.month = u.month
        and e.kind in ('cancelled', 'undelivered')
    offset 0
) x;

-- name: CodeInsert :exec
-- Inserts codes. Times of sending are separated by commas.
insert into notify_codes (tenant_id, type, recipient_hash, channel, recipient_hint, state, nonce, code_hash, tries,
    max_tries, tried_at, message_id, sent_at, expires_at, forget_at, principal, request_id)
select u.tenant_id, u.type, u.recipient_hash, u.channel, u.recipient_hint, u.state, u.nonce, u.code_hash, u.tries,
    u.max_tries, nullif(u.tried_at, '0001-01-01 00:00:00+00'), nullif(u.message_id, 0),
    string_to_array(u.sent_at, ',')::timestamptz[], u.expires_at, u.forget_at, u.principal, u.request_id
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@types::text[]) as type,
        unnest(@recipient_hashes::bytea[]) as recipient_hash, unnest(@channels::text[]) as channel,
        unnest(@recipient_hints::text[]) as recipient_hint, unnest(@states::text[]) as state,
        unnest(@nonces::bytea[]) as nonce, unnest(@code_hashes::bytea[]) as code_hash,
        unnest(@tries::integer[]) as tries, unnest(@max_tries::integer[]) as max_tries,
        unnest(@tried_at::timestamptz[]) as tried_at, unnest(@message_ids::bigint[]) as message_id,
        unnest(@sent_at::text[]) as sent_at, unnest(@expires_at::timestamptz[]) as expires_at,
        unnest(@forget_at::timestamptz[]) as forget_at,
        unnest(@principals::text[]) as principal, unnest(@request_ids::text[]) as request_id
) u
order by u.tenant_id, u.type collate "C", u.recipient_hash;

-- name: CodeUpdate :exec
-- Updates locked codes by ctid. The comparison of the hash is written so that no index serves it: on a small table the
-- planner would otherwise read the whole index instead of the ctids.
with updated as (
    update notify_codes c
    set recipient_hint = u.recipient_hint, state = u.state, nonce = u.nonce, code_hash = u.code_hash,
        tries = u.tries, max_tries = u.max_tries,
        tried_at = nullif(u.tried_at, '0001-01-01 00:00:00+00'), message_id = nullif(u.message_id, 0),
        sent_at = string_to_array(u.sent_at, ',')::timestamptz[], expires_at = u.expires_at,
        forget_at = u.forget_at, principal = u.principal, request_id = u.request_id
    from (
        select unnest(@tids::tid[]) as tid, unnest(@recipient_hashes::bytea[]) as recipient_hash,
            unnest(@recipient_hints::text[]) as recipient_hint, unnest(@states::text[]) as state,
            unnest(@nonces::bytea[]) as nonce, unnest(@code_hashes::bytea[]) as code_hash,
            unnest(@tries::integer[]) as tries, unnest(@max_tries::integer[]) as max_tries,
            unnest(@tried_at::timestamptz[]) as tried_at, unnest(@message_ids::bigint[]) as message_id,
            unnest(@sent_at::text[]) as sent_at, unnest(@expires_at::timestamptz[]) as expires_at,
            unnest(@forget_at::timestamptz[]) as forget_at,
            unnest(@principals::text[]) as principal, unnest(@request_ids::text[]) as request_id
        offset 0
    ) u
    where c.ctid = u.tid and c.recipient_hash is not distinct from u.recipient_hash
    returning 1
)
select commit_expect(count(*), cardinality(@recipient_hashes::bytea[])) from updated;

-- name: CodeClean :execrows
-- Deletes some codes that no limit needs any more, skipping locked rows. Uses now(), because clock_timestamp() cannot
-- be an index condition.
delete from notify_codes
where ctid = any(array(
    select c.ctid from notify_codes c
    where c.forget_at < now()
    order by c.forget_at
    limit @batch::integer
    for update skip locked
));

-- name: CodeOverdue :one
-- How long the oldest of these codes has been due for deletion, in seconds; 0: there is none.
select coalesce((
    select extract(epoch from clock_timestamp() - c.forget_at)
    from notify_codes c where c.forget_at < now() order by c.forget_at limit 1
), 0)::double precision as seconds;
