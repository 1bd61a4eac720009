-- Where webhooks go. Secrets are not here: they are derived from the master key. Locks nothing.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
set local role ledgerd_owner;

create table notify_endpoints (
    tenant_id      integer not null,
    name           text collate "C" not null,
    endpoint_id    bigint not null,
    url            text not null,
    types          text collate "C" not null,
    description    text not null,
    state          text collate "C" not null,
    disabled_for   text collate "C",
    disabled_at    timestamptz,
    secret_version integer not null,
    previous_until timestamptz,
    failing_since  timestamptz,
    failed_at      timestamptz,
    created_at     timestamptz not null,
    changed_at     timestamptz not null,
    principal      text collate "C" not null,
    request_id     text collate "C" not null,
    constraint notify_endpoints_pkey primary key (tenant_id, name),
    constraint notify_endpoints_name_check check (name ~ '^[a-z0-9][a-z0-9._-]{0,63}$'),
    constraint notify_endpoints_url_check check (octet_length(url) between 1 and 2048),
    constraint notify_endpoints_types_check check (octet_length(types) <= 8192),
    constraint notify_endpoints_description_check check (octet_length(description) <= 1024),
    constraint notify_endpoints_state_check check (state in ('active', 'disabled')),
    constraint notify_endpoints_disabled_check check
        ((state = 'disabled') = (disabled_for is not null) and (state = 'disabled') = (disabled_at is not null)),
    constraint notify_endpoints_disabled_for_check check (disabled_for in ('by_caller', 'gone', 'failing')),
    constraint notify_endpoints_secret_version_check check (secret_version >= 1),
    constraint notify_endpoints_previous_check check (previous_until is null or secret_version > 1),
    constraint notify_endpoints_failing_check check ((failing_since is null) = (failed_at is null) and failed_at >= failing_since)
);
create index notify_endpoints_active_idx on notify_endpoints (tenant_id, name) where state = 'active';
comment on table notify_endpoints is 'Webhook endpoints. Servers apply changes within 2 seconds.';
comment on column notify_endpoints.tenant_id is 'Tenant.';
comment on column notify_endpoints.name is 'Name of the endpoint: the recipient of messages.';
comment on column notify_endpoints.endpoint_id is 'Number of the row; endpoint_id >> 14 is the batch that created it. Secrets are derived from it, so an endpoint that is deleted and created again has others.';
comment on column notify_endpoints.url is 'URL that events are posted to.';
comment on column notify_endpoints.types is 'Types of published events that it receives, separated by commas; empty: all.';
comment on column notify_endpoints.description is 'Description for people.';
comment on column notify_endpoints.state is 'active; disabled: nothing is posted to it.';
comment on column notify_endpoints.disabled_for is 'by_caller; gone: it answered 410; failing: it failed for five days without a success.';
comment on column notify_endpoints.disabled_at is 'When it was disabled.';
comment on column notify_endpoints.secret_version is 'Version of its secret. The secret itself is not stored.';
comment on column notify_endpoints.previous_until is 'Until then events are also signed with the previous version of the secret.';
comment on column notify_endpoints.failing_since is 'When the present series of failures began; null: the last attempt succeeded.';
comment on column notify_endpoints.failed_at is 'Last failure, to the hour.';
comment on column notify_endpoints.created_at is 'When it was created: time of its batch.';
comment on column notify_endpoints.changed_at is 'When a call created or last changed it.';
comment on column notify_endpoints.principal is 'Principal that created or last changed it.';
comment on column notify_endpoints.request_id is 'X-Request-ID of that call.';
grant select, insert, delete on notify_endpoints to ledgerd_app;
grant update (endpoint_id, url, types, description, state, disabled_for, disabled_at, secret_version, previous_until, failing_since, failed_at,
    created_at, changed_at, principal, request_id) on notify_endpoints to ledgerd_app;
grant select on notify_endpoints to ledgerd_audit;

create view audit.webhook_endpoints as
select t.name as tenant, e.name as endpoint, e.url, nullif(e.types, '') as types, e.description, e.state, e.disabled_for, e.disabled_at,
    e.secret_version, e.previous_until, e.failing_since, e.created_at, e.changed_at, e.principal, e.request_id
from notify_endpoints e join access_tenants t using (tenant_id);
comment on view audit.webhook_endpoints is 'Webhook endpoints.';
comment on column audit.webhook_endpoints.tenant is 'Name of the tenant.';
comment on column audit.webhook_endpoints.endpoint is 'Name of the endpoint: the recipient of messages.';
comment on column audit.webhook_endpoints.url is 'URL that events are posted to.';
comment on column audit.webhook_endpoints.types is 'Types of published events that it receives; null: all.';
comment on column audit.webhook_endpoints.description is 'Description for people.';
comment on column audit.webhook_endpoints.state is 'active; disabled: nothing is posted to it.';
comment on column audit.webhook_endpoints.disabled_for is 'by_caller; gone: it answered 410; failing: it failed for five days without a success.';
comment on column audit.webhook_endpoints.disabled_at is 'When it was disabled.';
comment on column audit.webhook_endpoints.secret_version is 'Version of its secret.';
comment on column audit.webhook_endpoints.previous_until is 'Until then events are also signed with the previous version of the secret.';
comment on column audit.webhook_endpoints.failing_since is 'When the present series of failures began; null: the last attempt succeeded.';
comment on column audit.webhook_endpoints.created_at is 'When it was created.';
comment on column audit.webhook_endpoints.changed_at is 'When a call created or last changed it.';
comment on column audit.webhook_endpoints.principal is 'Principal that created or last changed it.';
comment on column audit.webhook_endpoints.request_id is 'X-Request-ID of that call.';
grant select on audit.webhook_endpoints to ledgerd_audit;
reset role;

-- +goose Down
drop view audit.webhook_endpoints;
drop table notify_endpoints;
