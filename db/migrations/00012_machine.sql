-- State machines: definitions, the moves that they allow, instances, and the history of each. Locks nothing.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
set local role ledgerd_owner;

create table machine_definitions (
    tenant_id       integer not null,
    machine         text collate "C" not null,
    version         integer not null,
    definition      jsonb not null,
    definition_hash bytea not null,
    principal       text collate "C" not null,
    request_id      text collate "C" not null,
    created_at      timestamptz not null,
    constraint machine_definitions_pkey primary key (tenant_id, machine, version),
    constraint machine_definitions_machine_check check (machine ~ '^[a-z0-9][a-z0-9._-]{0,63}$'),
    constraint machine_definitions_version_check check (version >= 1),
    constraint machine_definitions_definition_check check (octet_length(definition::text) <= 1048576),
    constraint machine_definitions_hash_check check (octet_length(definition_hash) = 32)
);
comment on table machine_definitions is
    'Versions of state machines. Append-only: an instance stays on the version that it was created with.';
comment on column machine_definitions.tenant_id is 'Tenant.';
comment on column machine_definitions.machine is 'Name of the machine.';
comment on column machine_definitions.version is 'Number of the version, from 1 without gaps.';
comment on column machine_definitions.definition is 'States, and the moves between them with their restrictions.';
comment on column machine_definitions.definition_hash is
    'SHA-256 of the definition: the same definition again makes no new version.';
comment on column machine_definitions.principal is 'Principal that defined it.';
comment on column machine_definitions.request_id is 'X-Request-ID of the call.';
comment on column machine_definitions.created_at is 'When it was defined: time of its batch.';

create table machine_moves (
    tenant_id  integer not null,
    machine    text collate "C" not null,
    version    integer not null,
    from_state text collate "C" not null,
    to_state   text collate "C" not null,
    back       boolean not null,
    constraint machine_moves_pkey primary key (tenant_id, machine, version, from_state, to_state),
    constraint machine_moves_states_check check (
        from_state <> to_state and from_state ~ '^([a-z][a-z0-9_]{0,63})?$' and to_state ~ '^[a-z][a-z0-9_]{0,63}$')
);
comment on table machine_moves is
    'Moves that a version of a machine allows, made from its definition: the trigger of machine_instances reads them. '
    'Append-only.';
comment on column machine_moves.tenant_id is 'Tenant.';
comment on column machine_moves.machine is 'Name of the machine.';
comment on column machine_moves.version is 'Version of the machine.';
comment on column machine_moves.from_state is 'State that the move leaves. Empty: an instance is created in to_state.';
comment on column machine_moves.to_state is 'State that the move enters.';
comment on column machine_moves.back is 'True if the move only leads back to the state that the instance came from.';

create trigger machine_definitions_append_only before update or delete or truncate on machine_definitions
    for each statement execute function commit_append_only();
create trigger machine_moves_append_only before update or delete or truncate on machine_moves
    for each statement execute function commit_append_only();

create table machine_instances (
    tenant_id   integer not null,
    machine     text collate "C" not null,
    key         text collate "C" not null,
    instance_id bigint not null,
    version     integer not null,
    state       text collate "C" not null,
    came_from   text collate "C" not null,
    revision    bigint not null,
    cause       text collate "C" not null,
    owner       text collate "C",
    timer_ms    bigint,
    timer_at    timestamptz,
    timer_to    text collate "C",
    created_at  timestamptz not null,
    changed_at  timestamptz not null,
    constraint machine_instances_pkey primary key (tenant_id, machine, key),
    constraint machine_instances_key_check check (octet_length(key) between 1 and 128),
    constraint machine_instances_revision_check check (revision >= 1 and (revision = 1) = (came_from = '')),
    constraint machine_instances_cause_check check (octet_length(cause) between 1 and 128),
    constraint machine_instances_owner_check check (octet_length(owner) between 1 and 128),
    constraint machine_instances_timer_check check (timer_ms > 0 and (timer_at is null) = (timer_to is null)),
    constraint machine_instances_changed_check check (changed_at >= created_at)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
-- All indexes but the primary key are partial: otherwise a plan made on an empty table could use one of them for a
-- lookup by key.
create index machine_instances_state_idx on machine_instances (tenant_id, machine, state, instance_id)
    where state <> '';
create index machine_instances_owner_idx on machine_instances (tenant_id, machine, owner, instance_id)
    where owner is not null;
create index machine_instances_timer_idx on machine_instances (timer_at, instance_id) where timer_at is not null;
create index machine_instances_due_idx on machine_instances (tenant_id, machine, timer_at) where timer_at is not null;
comment on table machine_instances is 'Instances of state machines: each is in one state.';
comment on column machine_instances.tenant_id is 'Tenant.';
comment on column machine_instances.machine is 'Name of the machine.';
comment on column machine_instances.key is 'The caller''s name of the instance, such as the number of an order.';
comment on column machine_instances.instance_id is 'Id; instance_id >> 14 is the batch that created it.';
comment on column machine_instances.version is 'Version of the machine that it follows. Never changes.';
comment on column machine_instances.state is
    'State. From timer_at on it counts as moved to timer_to, whether or not that is recorded.';
comment on column machine_instances.came_from is 'State before the last move; empty: it has not moved.';
comment on column machine_instances.revision is 'Number of its moves, its creation included. Each has the next.';
comment on column machine_instances.cause is
    'Cause of the last move, as the caller named it; "timer": its timer; "creation": its creation.';
comment on column machine_instances.owner is 'Owner, as named at its creation or by a later move; null: none.';
comment on column machine_instances.timer_ms is
    'Length of the first state''s timer in milliseconds, as given at its creation; null: that of the machine.';
comment on column machine_instances.timer_at is 'When the timer of its state fires; null: the state has none.';
comment on column machine_instances.timer_to is 'State to which the timer moves it.';
comment on column machine_instances.created_at is 'When it was created.';
comment on column machine_instances.changed_at is 'Time of its last move, or of its creation.';

-- The only statement trigger that reads another table: it copies its rows into arrays first, and then looks up each
-- move by its key. An update adds each row to both transition tables at the same position. If positions ever differed,
-- the ids would differ, and the trigger would refuse the update.
-- +goose StatementBegin
create function machine_instances_moved() returns trigger
    language plpgsql
    set search_path from current
    as $$
declare
    olds record;
    news record;
    bad record;
begin
    select array_agg(n.tenant_id) as tenants, array_agg(n.machine) as machines, array_agg(n.version) as versions,
        array_agg(n.instance_id) as ids, array_agg(n.state) as states, array_agg(n.came_from) as sources,
        array_agg(n.revision) as revisions
    into news from fresh n;
    if tg_op = 'INSERT' then
        olds := news;
        if 1 < any(news.revisions) then
            raise exception 'an instance of a machine begins at revision 1' using errcode = 'LD004';
        end if;
    else
        select array_agg(o.instance_id) as ids, array_agg(o.state) as states, array_agg(o.came_from) as sources,
            array_agg(o.revision + 1) as revisions
        into olds from gone o;
        if olds.ids <> news.ids or olds.states <> news.sources or olds.revisions <> news.revisions then
            raise exception 'only a move changes an instance of a machine: set came_from to its state before, and add '
                '1 to its revision' using errcode = 'LD004';
        end if;
    end if;
    select u.* into bad
    from (
        select distinct tenant_id, machine, version, from_state, to_state, came_from
        from unnest(news.tenants, news.machines, news.versions, news.sources, news.states, olds.sources)
            as x (tenant_id, machine, version, from_state, to_state, came_from)
    ) u
    left join lateral (
        select true as allowed from machine_moves m
        where m.tenant_id = u.tenant_id and m.machine = u.machine and m.version = u.version
            and m.from_state = u.from_state and m.to_state = u.to_state and (not m.back or m.to_state = u.came_from)
        offset 0
    ) a on true
    where a.allowed is null
    limit 1;
    if found then
        raise exception 'version % of machine % of tenant % does not allow a move from "%" to "%"',
            bad.version, bad.machine, bad.tenant_id, bad.from_state, bad.to_state using errcode = 'LD004';
    end if;
    return null;
end
$$;
-- +goose StatementEnd
comment on function machine_instances_moved is
    'Trigger function: checks that an instance is created in the first state of its version, and that each update is a '
    'move of its version, with the next revision.';

create trigger machine_instances_created after insert on machine_instances
    referencing new table as fresh for each statement execute function machine_instances_moved();
create trigger machine_instances_moved after update on machine_instances
    referencing new table as fresh old table as gone for each statement execute function machine_instances_moved();
create trigger machine_instances_kept before delete or truncate
    or update of tenant_id, machine, key, instance_id, version, timer_ms, created_at on machine_instances
    for each statement execute function commit_append_only();

create table machine_history (
    tenant_id   integer not null,
    instance_id bigint not null,
    revision    bigint not null,
    machine     text collate "C" not null,
    key         text collate "C" not null,
    version     integer not null,
    from_state  text collate "C" not null,
    to_state    text collate "C" not null,
    actor       text collate "C" not null,
    cause       text collate "C" not null,
    reason      text,
    inputs      jsonb,
    principal   text collate "C",
    request_id  text collate "C" not null,
    recorded_at timestamptz not null,
    constraint machine_history_pkey primary key (tenant_id, instance_id, revision),
    constraint machine_history_revision_check check ((revision = 1) = (from_state = '')),
    constraint machine_history_actor_check check (actor in ('caller', 'timer', 'flow')
        and (actor <> 'timer') = (principal is not null)),
    constraint machine_history_reason_check check (octet_length(reason) between 1 and 512),
    constraint machine_history_inputs_check check (octet_length(inputs::text) <= 131072)
) with (autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000);
create index machine_history_request_idx on machine_history
    using brin (recorded_at, request_id text_bloom_ops (n_distinct_per_range = 4000, false_positive_rate = 0.001))
    with (pages_per_range = 64);
select brin_desummarize_range('machine_history_request_idx', 0);
comment on index machine_history_request_idx is
    'BRIN index, to find moves by request id or time, as ledger_transfers_request_idx. ADR 8.';
comment on table machine_history is 'Moves of instances, their creation included. Append-only.';
comment on column machine_history.tenant_id is 'Tenant.';
comment on column machine_history.instance_id is 'Instance.';
comment on column machine_history.revision is 'Revision of the instance after the move. 1: its creation.';
comment on column machine_history.machine is 'Name of the machine.';
comment on column machine_history.key is 'Name of the instance.';
comment on column machine_history.version is 'Version of the machine.';
comment on column machine_history.from_state is 'State that it left; empty: it was created.';
comment on column machine_history.to_state is 'State that it entered.';
comment on column machine_history.actor is
    'caller; timer: the timer of the state that it left; flow: a call that callers cannot make by Move, such as a '
    'payment''s.';
comment on column machine_history.cause is 'Cause, as the caller named it; "timer"; "creation".';
comment on column machine_history.reason is 'Reason, for people; null: none.';
comment on column machine_history.inputs is 'Inputs of the caller: names and values; null: none.';
comment on column machine_history.principal is 'Principal of the caller; null: a timer.';
comment on column machine_history.request_id is
    'X-Request-ID of the call. Of a timer: the call that recorded the move, or "scheduler." and the instance''s id.';
comment on column machine_history.recorded_at is
    'When it was recorded, by the database''s clock, but not before the previous move.';

create trigger machine_history_append_only before update or delete or truncate on machine_history
    for each statement execute function commit_append_only();

grant select, insert on machine_definitions, machine_moves, machine_history, machine_instances to ledgerd_app;
grant update (state, came_from, revision, cause, owner, timer_at, timer_to, changed_at) on machine_instances
    to ledgerd_app;
grant select on machine_definitions, machine_moves, machine_history, machine_instances to ledgerd_audit;

create view audit.instances as
select t.name as tenant, i.machine, i.key, case when d.due then i.timer_to else i.state end as state,
    case when d.due then i.state else nullif(i.came_from, '') end as came_from,
    i.revision + d.due::integer as revision, case when d.due then 'timer' else i.cause end as cause,
    case when d.due then i.timer_at else i.changed_at end as changed_at, d.due,
    case when not d.due then i.timer_at end as timer_at, case when not d.due then i.timer_to end as timer_to,
    i.owner, i.version, i.created_at, i.instance_id
from machine_instances i
cross join lateral (select coalesce(i.timer_at <= now(), false) as due) d
left join access_tenants t on t.tenant_id = i.tenant_id;
comment on view audit.instances is
    'Instances of state machines in their present states: once its timer has fired, an instance is shown in the state '
    'to which the timer moves it.';
comment on column audit.instances.tenant is 'Name of the tenant.';
comment on column audit.instances.machine is 'Name of the machine.';
comment on column audit.instances.key is 'The caller''s name of the instance.';
comment on column audit.instances.state is 'State.';
comment on column audit.instances.came_from is 'State before the last move; null: it has not moved.';
comment on column audit.instances.revision is 'Number of its moves, its creation included.';
comment on column audit.instances.cause is 'Cause of the last move.';
comment on column audit.instances.changed_at is 'Time of its last move, or of its creation.';
comment on column audit.instances.due is 'True if its timer has fired, and the move is not recorded yet.';
comment on column audit.instances.timer_at is 'When the timer of its state fires; null: the state has none.';
comment on column audit.instances.timer_to is 'State to which the timer moves it.';
comment on column audit.instances.owner is 'Owner; null: none.';
comment on column audit.instances.version is 'Version of the machine that it follows.';
comment on column audit.instances.created_at is 'When it was created.';
comment on column audit.instances.instance_id is 'Id; instance_id >> 14 is the batch that created it.';

create view audit.machine_history as
select t.name as tenant, h.machine, h.key, h.revision, nullif(h.from_state, '') as from_state, h.to_state, h.actor,
    h.cause, h.reason, h.inputs, h.principal, h.request_id, h.recorded_at, h.version, h.instance_id
from machine_instances i
join machine_history h on h.tenant_id = i.tenant_id and h.instance_id = i.instance_id
left join access_tenants t on t.tenant_id = i.tenant_id;
comment on view audit.machine_history is 'Moves of instances of state machines, their creation included.';
comment on column audit.machine_history.tenant is 'Name of the tenant.';
comment on column audit.machine_history.machine is 'Name of the machine.';
comment on column audit.machine_history.key is 'The caller''s name of the instance.';
comment on column audit.machine_history.revision is 'Revision of the instance after the move. 1: its creation.';
comment on column audit.machine_history.from_state is 'State that it left; null: it was created.';
comment on column audit.machine_history.to_state is 'State that it entered.';
comment on column audit.machine_history.actor is
    'caller; timer: the timer of the state that it left; flow: a call that callers cannot make by Move, such as a '
    'payment''s.';
comment on column audit.machine_history.cause is 'Cause of the move.';
comment on column audit.machine_history.reason is 'Reason; null: none.';
comment on column audit.machine_history.inputs is 'Inputs of the caller; null: none.';
comment on column audit.machine_history.principal is 'Principal of the caller; null: a timer.';
comment on column audit.machine_history.request_id is
    'X-Request-ID of the call, or "scheduler." and the instance''s id.';
comment on column audit.machine_history.recorded_at is 'When it was recorded.';
comment on column audit.machine_history.version is 'Version of the machine.';
comment on column audit.machine_history.instance_id is 'Id of the instance.';
grant select on audit.instances, audit.machine_history to ledgerd_audit;
reset role;

-- +goose Down
drop view audit.machine_history;
drop view audit.instances;
drop table machine_history;
drop table machine_instances;
drop function machine_instances_moved;
drop table machine_moves;
drop table machine_definitions;
