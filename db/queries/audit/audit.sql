-- Statements on the audit log. Arrays have the same length.

-- name: EventInsert :exec
-- Adds the events of a batch. Empty text means null, and the zero time (year 1) the present time of the database.
insert into audit_events (tenant_id, event_id, kind, name, before, after, recorded_at, principal, key_id, request_id,
    approved_by)
select u.tenant_id, c.base + nextval('audit_event_seq'), u.kind, u.name, nullif(u.before, '')::jsonb,
    nullif(u.after, '')::jsonb, coalesce(nullif(@now::timestamptz, '0001-01-01 00:00:00+00'), c.now),
    nullif(u.principal, ''), nullif(u.key_id, ''), nullif(u.request_id, ''),
    nullif(u.approved_by, '')
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@kinds::text[]) as kind, unnest(@names::text[]) as name,
        unnest(@befores::text[]) as before, unnest(@afters::text[]) as after, unnest(@principals::text[]) as principal,
        unnest(@key_ids::text[]) as key_id, unnest(@request_ids::text[]) as request_id,
        unnest(@approved_by::text[]) as approved_by
) u
cross join (select clock_timestamp() as now, commit_base() as base offset 0) c;

-- name: EventPage :many
-- Events of a period, newest first. An empty kind or principal means any.
select e.event_id, e.kind, e.name, e.before, e.after, e.recorded_at, e.principal, e.key_id, e.request_id,
    e.database_role, e.approved_by
from audit_events e
where e.tenant_id = @tenant_id::integer and e.event_id < @before_id::bigint
    and e.recorded_at >= @start_at::timestamptz and e.recorded_at < @end_at::timestamptz
    and (@kind::text = '' or e.kind = @kind::text)
    and (@principal::text = '' or e.principal = @principal::text)
order by e.tenant_id desc, e.event_id desc
limit @count::integer;

-- name: EventPageOfName :many
-- EventPage for one setting.
select e.event_id, e.kind, e.name, e.before, e.after, e.recorded_at, e.principal, e.key_id, e.request_id,
    e.database_role, e.approved_by
from audit_events e
where e.tenant_id = @tenant_id::integer and e.kind = @kind::text and e.name = @name::text
    and e.event_id < @before_id::bigint
    and e.recorded_at >= @start_at::timestamptz and e.recorded_at < @end_at::timestamptz
    and (@principal::text = '' or e.principal = @principal::text)
order by e.tenant_id desc, e.kind desc, e.name desc, e.event_id desc
limit @count::integer;
