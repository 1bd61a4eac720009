-- Submit tokens. Arrays have the same length; n is a position in them, from 1. All lookups are by the full primary
-- key, so that the cost of spending a token does not depend on how many there are.

-- name: TokenLock :many
-- Locks tokens in the order of the arrays, which callers sort by tenant and hash.
select u.n::integer as n, t.state, t.subject, t.purpose, t.life_ms, t.survives_refusal, t.issued_at, t.expires_at,
    t.forget_at, t.spent_at, t.spent_request_id, t.operation, t.result, t.ctid
from (
    select generate_subscripts(@hashes::bytea[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@hashes::bytea[]) as token_hash
) u
cross join lateral (
    select l.state, l.subject, l.purpose, l.life_ms, l.survives_refusal, l.issued_at, l.expires_at, l.forget_at,
        l.spent_at, l.spent_request_id, l.operation, l.result, l.ctid
    from token_submit_tokens l
    where l.tenant_id = u.tenant_id and l.token_hash = u.token_hash
    offset 0
    for no key update
) t;

-- name: TokenInsert :exec
-- Inserts issued tokens. Those of one call share everything but the hash.
insert into token_submit_tokens (tenant_id, token_hash, subject, purpose, life_ms, survives_refusal, principal,
    request_id, issued_at, expires_at, forget_at)
select u.tenant_id, u.token_hash, nullif(u.subject, ''), nullif(u.purpose, ''), u.life_ms, u.survives_refusal,
    u.principal, u.request_id, @now::timestamptz, u.expires_at, u.forget_at
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@hashes::bytea[]) as token_hash,
        unnest(@subjects::text[]) as subject, unnest(@purposes::text[]) as purpose,
        unnest(@lives_ms::bigint[]) as life_ms, unnest(@survive_refusals::boolean[]) as survives_refusal,
        unnest(@principals::text[]) as principal, unnest(@request_ids::text[]) as request_id,
        unnest(@expires_at::timestamptz[]) as expires_at, unnest(@forget_at::timestamptz[]) as forget_at
) u
order by u.tenant_id, u.token_hash;

-- name: TokenSpend :exec
-- Marks locked tokens as spent, by ctid. The comparison of the hash is written so that no index serves it: on a small
-- table the planner would otherwise read the whole index instead of the ctids. Fails unless all were open: no token is
-- spent twice.
with spent as (
    update token_submit_tokens t
    set state = u.state, forget_at = u.forget_at, spent_at = greatest(@now::timestamptz, t.issued_at),
        spent_by = u.spent_by, spent_request_id = u.spent_request_id, operation = u.operation,
        result = nullif(u.result, '')::jsonb
    from (
        select unnest(@tids::tid[]) as tid, unnest(@hashes::bytea[]) as token_hash, unnest(@states::text[]) as state,
            unnest(@forget_at::timestamptz[]) as forget_at, unnest(@spent_by::text[]) as spent_by,
            unnest(@spent_request_ids::text[]) as spent_request_id, unnest(@operations::text[]) as operation,
            unnest(@results::text[]) as result
        offset 0
    ) u
    where t.ctid = u.tid and t.token_hash is not distinct from u.token_hash and t.state = 'open'
    returning 1
)
select commit_expect(count(*), cardinality(@hashes::bytea[])) from spent;

-- name: TokenReopen :exec
-- Opens locked tokens again, by ctid, as TokenSpend finds them. Fails unless all were spent.
with opened as (
    update token_submit_tokens t
    set state = 'open', expires_at = u.expires_at, forget_at = u.forget_at, spent_at = null, spent_by = null,
        spent_request_id = null, operation = null, result = null
    from (
        select unnest(@tids::tid[]) as tid, unnest(@hashes::bytea[]) as token_hash,
            unnest(@expires_at::timestamptz[]) as expires_at, unnest(@forget_at::timestamptz[]) as forget_at
        offset 0
    ) u
    where t.ctid = u.tid and t.token_hash is not distinct from u.token_hash and t.state = 'spent'
    returning 1
)
select commit_expect(count(*), cardinality(@hashes::bytea[])) from opened;

-- name: TokenKnown :one
-- Whether a token was issued and has not been deleted.
select exists (
    select from token_submit_tokens t
    where t.tenant_id = @tenant_id and t.token_hash = @token_hash and t.forget_at > clock_timestamp()
)::boolean as known;

-- name: TokenClean :execrows
-- Deletes some tokens past forget_at, oldest first, skipping locked rows. Uses now(), because clock_timestamp()
-- cannot be an index condition.
delete from token_submit_tokens
where ctid = any(array(
    select t.ctid from token_submit_tokens t
    where t.forget_at < now()
    order by t.forget_at
    limit @batch::integer
    for update skip locked
));

-- name: TokenOverdue :one
-- How long the oldest token has been past forget_at, in seconds; 0: there is none.
select coalesce((
    select extract(epoch from clock_timestamp() - t.forget_at)
    from token_submit_tokens t where t.forget_at < now() order by t.forget_at limit 1
), 0)::double precision as seconds;
