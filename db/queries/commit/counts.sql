-- Outcomes of calls with a request key. They are counted outside of the batches.

-- name: CountsAdd :exec
-- Adds to the counts of this hour. All processes update in the same order.
insert into commit_counts as c (tenant_id, operation, outcome, hour, count)
select u.tenant_id, u.operation, u.outcome, date_trunc('hour', now(), 'UTC'), u.count
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@operations::text[]) as operation,
        unnest(@outcomes::text[]) as outcome, unnest(@counts::bigint[]) as count
) u
order by u.tenant_id, u.operation collate "C", u.outcome collate "C"
on conflict on constraint commit_counts_pkey do update set count = c.count + excluded.count;

-- name: CountsClean :execrows
-- Deletes some counts older than 90 days.
delete from commit_counts
where ctid = any(array(
    select k.ctid from commit_counts k
    where k.hour < now() - interval '90 days'
    order by k.hour
    limit @batch::integer
    for update skip locked
));

-- name: CountsOverdue :one
-- How long the oldest counts have been older than 90 days, in seconds; 0: there are none.
select coalesce((
    select extract(epoch from clock_timestamp() - k.hour - interval '90 days')
    from commit_counts k where k.hour < now() - interval '90 days' order by k.hour limit 1
), 0)::double precision as seconds;
