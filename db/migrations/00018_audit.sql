-- The audit log of settings: each change with its time, its author, and the values before and after. Locks nothing.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
set local role ledgerd_owner;

create sequence audit_event_seq as bigint;
comment on sequence audit_event_seq is
    'Numbers of events in the audit log. Those of one setting rise in the order of its changes. The base of the epoch '
    'is added: see commit_base.';

create table audit_events (
    tenant_id     integer not null,
    event_id      bigint not null,
    kind          text collate "C" not null,
    name          text collate "C" not null,
    before        jsonb,
    after         jsonb,
    recorded_at   timestamptz not null,
    principal     text collate "C",
    key_id        text collate "C",
    request_id    text collate "C",
    database_role text collate "C" not null default session_user,
    approved_by   text collate "C",
    constraint audit_events_pkey primary key (tenant_id, event_id),
    constraint audit_events_kind_check check (kind in ('account', 'endpoint', 'gateway', 'key', 'limit', 'machine',
        'policy', 'sale', 'template', 'tenant')),
    constraint audit_events_name_check check (octet_length(name) between 1 and 512),
    constraint audit_events_change_check check (before is distinct from after)
) with (autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000);
create index audit_events_name_idx on audit_events (tenant_id, kind, name, event_id);
comment on table audit_events is
    'The audit log: one row for each change of a setting, in the commit of the change. Append-only, kept for ever.';
comment on column audit_events.tenant_id is 'Tenant.';
comment on column audit_events.event_id is 'Number, from audit_event_seq and the epoch.';
comment on column audit_events.kind is
    'Kind of the setting: account, endpoint, gateway, key, limit, machine, policy, sale, template or tenant.';
comment on column audit_events.name is
    'Name of the setting. Of an account its code and asset, of a template its channel and name, of a limit its '
    'channel, scope and window, with a space between them; of a policy the operation; of a key its id.';
comment on column audit_events.before is 'Its values before; null: it is new.';
comment on column audit_events.after is 'Its values after; null: it was deleted.';
comment on column audit_events.recorded_at is 'Time of the change, by the database''s clock.';
comment on column audit_events.principal is
    'Principal of the caller; null: the service itself, or a login of the database such as that of the command line.';
comment on column audit_events.key_id is
    'API key of the caller; null: a client certificate, a token, or a login of the database.';
comment on column audit_events.request_id is 'X-Request-ID of the call; null: it was no call.';
comment on column audit_events.database_role is 'Login of the database that wrote the event.';
comment on column audit_events.approved_by is
    'Principal that approved the change; null: it needed no approval. The request id is that of the approval.';

create trigger audit_events_append_only before update or delete or truncate on audit_events
    for each statement execute function commit_append_only();
grant select on audit_events to ledgerd_app;
-- Without database_role, so that a login cannot name another one.
grant insert (tenant_id, event_id, kind, name, before, after, recorded_at, principal, key_id, request_id, approved_by)
    on audit_events to ledgerd_app, ledgerd_admin;
grant usage, select on sequence audit_event_seq to ledgerd_app;
grant usage on sequence audit_event_seq to ledgerd_admin;
grant select, insert (begun_at) on commit_epochs to ledgerd_admin;
grant select on audit_events, audit_event_seq to ledgerd_audit;

create view audit.changes as
select t.name as tenant, e.recorded_at as at, e.kind, e.name, e.before, e.after, e.principal, e.key_id,
    e.approved_by, e.database_role, e.request_id, e.event_id
from audit_events e
join access_tenants t on t.tenant_id = e.tenant_id;
comment on view audit.changes is
    'Changes of settings: each with its time, its author, and the values before and after.';
comment on column audit.changes.tenant is 'Name of the tenant.';
comment on column audit.changes.at is 'When it was changed.';
comment on column audit.changes.kind is
    'account, endpoint, gateway, key, limit, machine, policy, sale, template or tenant.';
comment on column audit.changes.name is
    'Name of the setting, such as "user:7 EUR" of an account: its parts have a space between them.';
comment on column audit.changes.before is 'Its values before; null: it is new.';
comment on column audit.changes.after is 'Its values after; null: it was deleted.';
comment on column audit.changes.principal is
    'Principal of the caller; null: the service itself, or a login of the database.';
comment on column audit.changes.key_id is 'API key of the caller; null: none was used.';
comment on column audit.changes.approved_by is
    'Principal that approved the change: see audit.approvals; null: it needed no approval.';
comment on column audit.changes.database_role is 'Login of the database that wrote the event.';
comment on column audit.changes.request_id is 'X-Request-ID of the call; null: it was no call.';
comment on column audit.changes.event_id is 'Number in audit_events.';
grant select on audit.changes to ledgerd_audit;
reset role;

-- +goose Down
revoke select, insert (begun_at) on commit_epochs from ledgerd_admin;
drop view audit.changes;
drop table audit_events;
drop sequence audit_event_seq;
