-- Statements on claims. The tenant is passed in an array and the index is reached by a lateral sub-select, so that a
-- generic plan made on an empty table stays right on a full one.

-- name: ClaimLock :many
-- Locks claims in the order of the arrays, which callers sort by tenant, scope and key. n is the position, from 1.
select u.n::integer as n, k.ctid, k.claim_id, k.uses, k.owner, k.result, k.parts, k.principal, k.request_id,
    k.claimed_at, k.expires_at
from (
    select generate_subscripts(@keys::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@scopes::text[]) as scope, unnest(@keys::text[]) as key
) u
cross join lateral (
    select c.ctid, c.claim_id, c.uses, c.owner, c.result, c.parts, c.principal, c.request_id, c.claimed_at, c.expires_at
    from claim_keys c
    where c.tenant_id = u.tenant_id and c.scope = u.scope and c.key = u.key
    offset 0
    for no key update
) k;

-- name: ClaimInsert :exec
-- Inserts claims in the order of the arrays, which callers sort. An array is null if all its elements equal the
-- scalar beside it: that is cheaper to send and to decode.
insert into claim_keys (tenant_id, scope, key, claim_id, uses, owner, result, parts, principal, request_id,
    claimed_at, expires_at)
select coalesce(u.tenant_id, @tenant::integer), coalesce(u.scope, @scope::text), u.key, u.claim_id,
    coalesce(u.uses, @use::bigint), nullif(coalesce(u.owner, @owner::text), ''),
    nullif(coalesce(u.result, @result::text), ''), u.parts, coalesce(u.principal, @principal::text), u.request_id,
    @now::timestamptz, nullif(coalesce(u.expires_at, @expiry::timestamptz), '0001-01-01 00:00:00+00')
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@scopes::text[]) as scope, unnest(@keys::text[]) as key,
        unnest(@claim_ids::bigint[]) as claim_id, unnest(@uses::bigint[]) as uses, unnest(@owners::text[]) as owner,
        unnest(@results::text[]) as result, unnest(@parts::jsonb[]) as parts, unnest(@principals::text[]) as principal,
        unnest(@request_ids::text[]) as request_id, unnest(@expires_at::timestamptz[]) as expires_at
) u;

-- name: ClaimRenew :exec
-- Claims keys again whose expired row is still there. Rows are found by ctid, since they are locked.
with renewed as (
    update claim_keys c
    set claim_id = u.claim_id, uses = u.uses, owner = nullif(u.owner, ''), result = nullif(u.result, ''),
        parts = u.parts, principal = u.principal, request_id = u.request_id, claimed_at = @now::timestamptz,
        expires_at = nullif(u.expires_at, '0001-01-01 00:00:00+00')
    from (
        select unnest(@tids::tid[]) as tid, unnest(@claim_ids::bigint[]) as claim_id,
            unnest(@uses::bigint[]) as uses, unnest(@owners::text[]) as owner,
        unnest(@results::text[]) as result, unnest(@parts::jsonb[]) as parts, unnest(@principals::text[]) as principal,
        unnest(@request_ids::text[]) as request_id, unnest(@expires_at::timestamptz[]) as expires_at
        offset 0
    ) u
    where c.ctid = u.tid
    returning 1
)
select commit_expect(count(*), cardinality(@tids::tid[])) from renewed;

-- name: ClaimCount :exec
-- Counts uses.
with counted as (
    update claim_keys c set uses = u.uses
    from (select unnest(@tids::tid[]) as tid, unnest(@uses::bigint[]) as uses offset 0) u
    where c.ctid = u.tid
    returning 1
)
select commit_expect(count(*), cardinality(@tids::tid[])) from counted;

-- name: ClaimDrop :exec
-- Deletes claims.
with dropped as (
    delete from claim_keys c where c.ctid = any(@tids::tid[])
    returning 1
)
select commit_expect(count(*), cardinality(@tids::tid[])) from dropped;

-- name: ClaimGet :one
select c.claim_id, c.uses, c.owner, c.result, c.parts, c.principal, c.request_id, c.claimed_at, c.expires_at
from claim_keys c
where c.tenant_id = @tenant_id and c.scope = @scope and c.key = @key
    and (c.expires_at is null or c.expires_at > clock_timestamp());

-- name: ClaimClean :execrows
-- Deletes some expired claims, oldest first, skipping locked rows. Uses now(), because clock_timestamp() cannot be an
-- index condition: all live rows would be read.
delete from claim_keys
where ctid = any(array(
    select c.ctid from claim_keys c
    where c.expires_at < now()
    order by c.expires_at
    limit @batch::integer
    for update skip locked
));

-- name: ClaimOverdue :one
-- Age of the oldest expired claim that is still there, in seconds; 0: there is none.
select coalesce((
    select extract(epoch from clock_timestamp() - c.expires_at)
    from claim_keys c where c.expires_at < now() order by c.expires_at limit 1
), 0)::double precision as seconds;

-- name: ClaimSeen :many
-- Positions of the keys that have a row by now: the batch may have waited since it locked the rows that existed.
select u.n::integer as n
from (
    select generate_subscripts(@keys::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@scopes::text[]) as scope, unnest(@keys::text[]) as key
) u
cross join lateral (
    select 1 from claim_keys l where l.tenant_id = u.tenant_id and l.scope = u.scope and l.key = u.key offset 0
) c;
