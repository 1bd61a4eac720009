-- Statements of the workers that call gateways, beside the engine.

-- name: CallTake :many
-- Leases due calls of a gateway, oldest first, skipping locked rows.
update payment_calls c
set lease_expires_at = y.lease_expires_at, lease_nonce = @lease_nonce::bigint, attempts = c.attempts + 1
from (
    select l.ctid as tid, now() + make_interval(secs => @lease_s::float8) as lease_expires_at
    from payment_calls l
    where l.tenant_id = @tenant_id::integer and l.gateway = @gateway::text and l.call <> 'flag'
        and l.next_call_at <= now() and (l.lease_expires_at is null or l.lease_expires_at <= now())
    order by l.next_call_at
    limit @count::integer
    for no key update skip locked
) y
where c.ctid = y.tid
returning c.subject, c.number, c.call, c.attempts;

-- name: CallTakeOne :many
-- Leases one call, unless a worker has it. With early, the call need not be due.
update payment_calls c
set lease_expires_at = y.lease_expires_at, lease_nonce = @lease_nonce::bigint, attempts = c.attempts + 1
from (
    select l.ctid as tid, now() + make_interval(secs => @lease_s::float8) as lease_expires_at
    from payment_calls l
    where l.tenant_id = @tenant_id::integer and l.subject = @subject::text and l.number = @number::text
        and l.call <> 'flag' and (l.lease_expires_at is null or l.lease_expires_at <= now())
        and (@early::boolean or l.next_call_at <= now())
    for no key update skip locked
) y
where c.ctid = y.tid
returning c.subject, c.number, c.call, c.attempts;

-- name: CallRunning :one
-- Whether a worker has leased a call.
select exists (
    select from payment_calls l
    where l.tenant_id = @tenant_id::integer and l.subject = @subject::text and l.number = @number::text
        and l.lease_expires_at > now()
)::boolean as running;

-- name: CallAgain :execrows
-- Ends the lease of a call, and schedules the same or another call, because the attempt had no result.
update payment_calls c
set call = @call::text, next_call_at = y.next_call_at, lease_expires_at = null, lease_nonce = null,
    last_code = nullif(@code::text, ''), last_text = nullif(@message::text, '')
from (select now() + make_interval(secs => @wait_s::float8) as next_call_at) y
where c.tenant_id = @tenant_id::integer and c.subject = @subject::text and c.number = @number::text
    and c.lease_nonce = @lease_nonce::bigint;

-- name: CallFlagDue :many
-- Payments that gateways reported as paid and that were not created in time, after a given one.
select c.tenant_id, c.number, c.next_call_at
from payment_calls c
where c.call = 'flag' and c.next_call_at <= now()
    and (c.next_call_at, c.tenant_id, c.number) > (@after::timestamptz, @after_tenant::integer, @after_number::text)
order by c.next_call_at, c.tenant_id, c.number
limit @batch::integer;

-- name: CallStats :many
-- Number of due calls by tenant and gateway, with the age of the oldest in seconds. A gateway may be in the settings of
-- no server.
select c.tenant_id, c.gateway, count(*)::bigint as calls,
    extract(epoch from now() - min(c.next_call_at))::double precision as age
from payment_calls c
where c.next_call_at <= now() and c.call <> 'flag'
group by c.tenant_id, c.gateway;

-- name: FlagStats :one
-- Number of open flags.
select count(*)::bigint as open from payment_flags f where f.state = 'open';
