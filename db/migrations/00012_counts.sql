-- How request keys and leases ended, by the hour, so that lives can be chosen by what happens. Locks nothing.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
set local role ledgerd_owner;

create table commit_counts (
    tenant_id integer not null,
    operation text collate "C" not null,
    outcome   text collate "C" not null,
    hour      timestamptz not null,
    count     bigint not null,
    constraint commit_counts_pkey primary key (tenant_id, operation, outcome, hour),
    constraint commit_counts_outcome_check check (octet_length(outcome) between 1 and 32),
    constraint commit_counts_hour_check check (extract(epoch from hour)::bigint % 3600 = 0),
    constraint commit_counts_count_check check (count > 0)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
create index commit_counts_hour_idx on commit_counts (hour);
comment on table commit_counts is 'Outcomes of calls with a request key, counted by hour and kept for 90 days. A process adds its counts every ten seconds, so the last ten seconds of a killed process are missing.';
comment on column commit_counts.tenant_id is 'Tenant.';
comment on column commit_counts.operation is 'Operation that was called, such as ledger.transfer.';
comment on column commit_counts.outcome is 'first: the call ran, and its answer was recorded; refused: a business rule refused it, which was recorded; replayed: it got the recorded answer; mismatch: the key was used before with other content; expired: it ran again, because the key had expired; taken_over: it took over a lapsed lease.';
comment on column commit_counts.hour is 'Start of the hour, by the database''s clock when the count was added.';
comment on column commit_counts.count is 'Number of calls.';
grant select, insert, delete on commit_counts to ledgerd_app;
grant update (count) on commit_counts to ledgerd_app;
grant select on commit_counts to ledgerd_audit;

create view audit.key_outcomes as
select t.name as tenant, c.operation, c.hour,
    coalesce(sum(c.count) filter (where c.outcome = 'first'), 0) as first,
    coalesce(sum(c.count) filter (where c.outcome = 'refused'), 0) as refused,
    coalesce(sum(c.count) filter (where c.outcome = 'replayed'), 0) as replayed,
    coalesce(sum(c.count) filter (where c.outcome = 'mismatch'), 0) as mismatched,
    coalesce(sum(c.count) filter (where c.outcome = 'expired'), 0) as expired,
    coalesce(sum(c.count) filter (where c.outcome = 'taken_over'), 0) as taken_over,
    round(coalesce(sum(c.count) filter (where c.outcome = 'replayed') / sum(c.count) filter (where c.outcome <> 'taken_over'), 0), 4) as hit_rate
from commit_counts c
left join access_tenants t on t.tenant_id = c.tenant_id
group by c.tenant_id, t.name, c.operation, c.hour;
comment on view audit.key_outcomes is 'Outcomes of calls with a request key, and of work under a lease, by operation and hour.';
comment on column audit.key_outcomes.tenant is 'Name of the tenant.';
comment on column audit.key_outcomes.operation is 'Operation that was called.';
comment on column audit.key_outcomes.hour is 'Start of the hour.';
comment on column audit.key_outcomes.first is 'Calls that ran, and whose answer was recorded.';
comment on column audit.key_outcomes.refused is 'Calls that a business rule refused, which was recorded.';
comment on column audit.key_outcomes.replayed is 'Calls that got a recorded answer.';
comment on column audit.key_outcomes.mismatched is 'Calls whose key was used before with other content.';
comment on column audit.key_outcomes.expired is 'Calls that ran again, because their key had expired. If there are many, give keys a longer life.';
comment on column audit.key_outcomes.taken_over is 'Calls that took over a lapsed lease.';
comment on column audit.key_outcomes.hit_rate is 'Share of the calls with a request key that were replayed, 0 to 1.';
grant select on audit.key_outcomes to ledgerd_audit;
reset role;

-- +goose Down
drop view audit.key_outcomes;
drop table commit_counts;
