-- Webhook endpoints, templates of messages, and verification codes. Locks nothing.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
set local role ledgerd_owner;

create table notify_endpoints (
    tenant_id      integer not null,
    name           text collate "C" not null,
    endpoint_id    bigint not null,
    slot           smallint not null,
    url            text not null,
    types          text collate "C" not null,
    description    text not null,
    state          text collate "C" not null,
    disabled_for   text collate "C",
    disabled_at    timestamptz,
    secret_version integer not null,
    previous_expires_at timestamptz,
    failing_since  timestamptz,
    failed_at      timestamptz,
    created_at     timestamptz not null,
    changed_at     timestamptz not null,
    principal      text collate "C" not null,
    request_id     text collate "C" not null,
    constraint notify_endpoints_pkey primary key (tenant_id, name),
    constraint notify_endpoints_slot_key unique (tenant_id, slot),
    constraint notify_endpoints_slot_check check (slot between 1 and 100),
    constraint notify_endpoints_name_check check (name ~ '^[a-z0-9][a-z0-9._-]{0,63}$'),
    constraint notify_endpoints_url_check check (octet_length(url) between 1 and 2048),
    constraint notify_endpoints_types_check check (octet_length(types) <= 8192),
    constraint notify_endpoints_description_check check (octet_length(description) <= 1024),
    constraint notify_endpoints_state_check check (state in ('active', 'disabled')),
    constraint notify_endpoints_disabled_check check
        ((state = 'disabled') = (disabled_for is not null) and (state = 'disabled') = (disabled_at is not null)),
    constraint notify_endpoints_disabled_for_check check (disabled_for in ('by_caller', 'gone', 'failing')),
    constraint notify_endpoints_secret_version_check check (secret_version >= 1),
    constraint notify_endpoints_previous_check check (previous_expires_at is null or secret_version > 1),
    constraint notify_endpoints_failing_check check
        ((failing_since is null) = (failed_at is null) and failed_at >= failing_since)
);
create index notify_endpoints_active_idx on notify_endpoints (tenant_id, name) where state = 'active';
comment on table notify_endpoints is 'Webhook endpoints. Servers apply changes within 2 seconds.';
comment on column notify_endpoints.tenant_id is 'Tenant.';
comment on column notify_endpoints.name is 'Name of the endpoint: the recipient of messages.';
comment on column notify_endpoints.endpoint_id is
    'Number of the row; endpoint_id >> 14 is the batch that created it. Secrets are derived from it, so an '
    'endpoint that is deleted and created again has others.';
comment on column notify_endpoints.slot is
    'Number in the tenant, from 1 to 100. It limits the endpoints of a tenant, however many are created at a time.';
comment on column notify_endpoints.url is 'URL that events are posted to.';
comment on column notify_endpoints.types is
    'Types of published events that it receives, separated by commas; empty: all.';
comment on column notify_endpoints.description is 'Description for people.';
comment on column notify_endpoints.state is 'active; disabled: nothing is posted to it.';
comment on column notify_endpoints.disabled_for is
    'by_caller; gone: it answered 410; failing: it failed for five days without a success.';
comment on column notify_endpoints.disabled_at is 'When it was disabled.';
comment on column notify_endpoints.secret_version is 'Version of its secret. The secret itself is not stored.';
comment on column notify_endpoints.previous_expires_at is
    'Until then events are also signed with the previous version of the secret.';
comment on column notify_endpoints.failing_since is
    'When the present series of failures began; null: the last attempt succeeded.';
comment on column notify_endpoints.failed_at is 'Last failure, to the hour.';
comment on column notify_endpoints.created_at is 'When it was created: time of its batch.';
comment on column notify_endpoints.changed_at is 'When a call created or last changed it.';
comment on column notify_endpoints.principal is 'Principal that created or last changed it.';
comment on column notify_endpoints.request_id is 'X-Request-ID of that call.';
grant select, insert, delete on notify_endpoints to ledgerd_app;
grant update (endpoint_id, url, types, description, state, disabled_for, disabled_at, secret_version,
    previous_expires_at, failing_since, failed_at, created_at, changed_at, principal, request_id) on notify_endpoints to
    ledgerd_app;
grant select on notify_endpoints to ledgerd_audit;

create view audit.webhook_endpoints as
select t.name as tenant, e.name as endpoint, e.url, nullif(e.types, '') as types, e.description, e.state,
    e.disabled_for, e.disabled_at, e.secret_version, e.previous_expires_at,
    e.failing_since, e.created_at, e.changed_at, e.principal, e.request_id
from notify_endpoints e join access_tenants t using (tenant_id);
comment on view audit.webhook_endpoints is 'Webhook endpoints.';
comment on column audit.webhook_endpoints.tenant is 'Name of the tenant.';
comment on column audit.webhook_endpoints.endpoint is 'Name of the endpoint: the recipient of messages.';
comment on column audit.webhook_endpoints.url is 'URL that events are posted to.';
comment on column audit.webhook_endpoints.types is 'Types of published events that it receives; null: all.';
comment on column audit.webhook_endpoints.description is 'Description for people.';
comment on column audit.webhook_endpoints.state is 'active; disabled: nothing is posted to it.';
comment on column audit.webhook_endpoints.disabled_for is
    'by_caller; gone: it answered 410; failing: it failed for five days without a success.';
comment on column audit.webhook_endpoints.disabled_at is 'When it was disabled.';
comment on column audit.webhook_endpoints.secret_version is 'Version of its secret.';
comment on column audit.webhook_endpoints.previous_expires_at is
    'Until then events are also signed with the previous version of the secret.';
comment on column audit.webhook_endpoints.failing_since is
    'When the present series of failures began; null: the last attempt succeeded.';
comment on column audit.webhook_endpoints.created_at is 'When it was created.';
comment on column audit.webhook_endpoints.changed_at is 'When a call created or last changed it.';
comment on column audit.webhook_endpoints.principal is 'Principal that created or last changed it.';
comment on column audit.webhook_endpoints.request_id is 'X-Request-ID of that call.';
grant select on audit.webhook_endpoints to ledgerd_audit;

create table notify_templates (
    tenant_id      integer not null,
    channel        text collate "C" not null,
    name           text collate "C" not null,
    default_locale text collate "C" not null,
    last_version   integer not null,
    locales        text[] collate "C" not null,
    versions       integer[] not null,
    changed_at     timestamptz not null,
    deleted_at     timestamptz,
    constraint notify_templates_pkey primary key (tenant_id, channel, name),
    constraint notify_templates_channel_check check (channel in ('sms', 'email', 'push')),
    constraint notify_templates_name_check check (octet_length(name) between 1 and 128),
    constraint notify_templates_default_check check (default_locale = any(locales)),
    constraint notify_templates_versions_check check (cardinality(locales) between 1 and 200
        and cardinality(locales) = cardinality(versions)),
    constraint notify_templates_last_version_check check (last_version >= 1)
);
comment on table notify_templates is
    'Templates of messages, with the present version of each locale. The versions are in notify_template_versions.';
comment on column notify_templates.tenant_id is 'Tenant.';
comment on column notify_templates.channel is 'sms, email or push.';
comment on column notify_templates.name is 'Name, such as order.paid.';
comment on column notify_templates.default_locale is
    'Locale used for recipients whose locale the template does not have.';
comment on column notify_templates.last_version is 'Number of the newest version, in any locale.';
comment on column notify_templates.locales is 'Locales of the template.';
comment on column notify_templates.versions is 'Present version in each locale, in the order of locales.';
comment on column notify_templates.changed_at is 'When the template was last changed.';
comment on column notify_templates.deleted_at is
    'When it was deleted; null: not deleted. Nothing is sent with a deleted template.';

create table notify_template_versions (
    tenant_id       integer not null,
    channel         text collate "C" not null,
    name            text collate "C" not null,
    version         integer not null,
    locale          text collate "C" not null,
    definition      jsonb not null,
    definition_hash bytea not null,
    principal       text collate "C" not null,
    request_id      text collate "C" not null,
    created_at      timestamptz not null,
    constraint notify_template_versions_pkey primary key (tenant_id, channel, name, version),
    constraint notify_template_versions_version_check check (version >= 1),
    constraint notify_template_versions_locale_check check (octet_length(locale) between 2 and 35),
    constraint notify_template_versions_definition_check check (octet_length(definition::text) <= 1048576),
    constraint notify_template_versions_definition_hash_check check (octet_length(definition_hash) = 32)
);
comment on table notify_template_versions is
    'Versions of templates. Rows never change, so that the template of an old message can always be read.';
comment on column notify_template_versions.tenant_id is 'Tenant.';
comment on column notify_template_versions.channel is 'Channel of the template.';
comment on column notify_template_versions.name is 'Name of the template.';
comment on column notify_template_versions.version is
    'Number of the version, from 1, over all locales of the template.';
comment on column notify_template_versions.locale is 'Locale of the version, such as zh-Hant.';
comment on column notify_template_versions.definition is
    'Subject, text, HTML, variables, provider templates, and defaults of messages.';
comment on column notify_template_versions.definition_hash is
    'SHA-256 of the definition: the same definition again makes no new version.';
comment on column notify_template_versions.principal is 'Principal that created it.';
comment on column notify_template_versions.request_id is 'X-Request-ID of the call that created it.';
comment on column notify_template_versions.created_at is 'When it was created.';

create trigger notify_template_versions_append_only before update or delete on notify_template_versions
    for each row execute function commit_append_only();

create table notify_codes (
    tenant_id      integer not null,
    type           text collate "C" not null,
    recipient_hash bytea not null,
    channel        text collate "C" not null,
    recipient_hint text not null,
    state          text collate "C" not null,
    nonce          bytea not null,
    code_hash      bytea not null,
    tries          integer not null,
    max_tries      integer not null,
    tried_at       timestamptz,
    message_id     bigint,
    sent_at        timestamptz[] not null,
    expires_at     timestamptz not null,
    forget_at      timestamptz not null,
    principal      text collate "C" not null,
    request_id     text collate "C" not null,
    constraint notify_codes_pkey primary key (tenant_id, type, recipient_hash),
    constraint notify_codes_type_check check (octet_length(type) between 1 and 64),
    constraint notify_codes_recipient_hash_check check (octet_length(recipient_hash) = 16),
    constraint notify_codes_channel_check check (channel in ('sms', 'email')),
    constraint notify_codes_recipient_hint_check check (char_length(recipient_hint) <= 64),
    constraint notify_codes_state_check check (state in ('open', 'used', 'none')),
    constraint notify_codes_code_hash_check check (octet_length(code_hash) = 32 and octet_length(nonce) = 16),
    constraint notify_codes_tries_check check (tries between 0 and max_tries and max_tries between 1 and 5),
    constraint notify_codes_sent_check check (
        cardinality(sent_at) <= 100 and (state = 'none' or cardinality(sent_at) > 0)),
    constraint notify_codes_forget_check check (forget_at >= expires_at)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
create index notify_codes_forget_idx on notify_codes (forget_at);
comment on table notify_codes is
    'Verification codes that prove control of a phone number or an e-mail address: the last code of each type for '
    'each recipient. A row past forget_at counts as deleted.';
comment on column notify_codes.tenant_id is 'Tenant.';
comment on column notify_codes.type is
    'Type of the code, such as login. *: not a code, but the wrong tries of the recipient over all types.';
comment on column notify_codes.recipient_hash is
    'Keyed hash of tenant, channel and recipient, under another key than in notify_messages.';
comment on column notify_codes.channel is 'sms or email.';
comment on column notify_codes.recipient_hint is 'The recipient, masked.';
comment on column notify_codes.state is
    'open: can be verified until expires_at, while tries are left; used: was verified; none: no code was sent, and '
    'only wrong tries are counted.';
comment on column notify_codes.nonce is 'Random salt of code_hash.';
comment on column notify_codes.code_hash is
    'HMAC-SHA256 of tenant, type, recipient, nonce and code, under a key that is not in the database.';
comment on column notify_codes.tries is 'Wrong tries.';
comment on column notify_codes.max_tries is 'Wrong tries after which it can no longer be verified.';
comment on column notify_codes.tried_at is 'When the last wrong try was counted in tries; null: never.';
comment on column notify_codes.message_id is
    'Message with the code; null: none was sent, because the caller suppressed it, or no code was requested.';
comment on column notify_codes.sent_at is
    'Times of the codes sent in the last 24 hours, newest last; for type *: times of the wrong tries.';
comment on column notify_codes.expires_at is 'When it expires.';
comment on column notify_codes.forget_at is 'When the row is no longer needed and the cleaner may delete it.';
comment on column notify_codes.principal is
    'Principal that sent the code, or that tried a code although none was sent.';
comment on column notify_codes.request_id is 'X-Request-ID of that call.';
comment on index notify_codes_forget_idx is 'For the cleaner.';

grant select, insert on notify_templates, notify_template_versions to ledgerd_app;
grant update (default_locale, last_version, locales, versions, changed_at, deleted_at)
    on notify_templates to ledgerd_app;
grant select, insert, delete on notify_codes to ledgerd_app;
grant update (state, nonce, code_hash, tries, max_tries, tried_at, message_id, sent_at, expires_at, forget_at,
    recipient_hint, principal, request_id) on notify_codes to ledgerd_app;
grant select on notify_templates, notify_template_versions to ledgerd_audit;
grant select (tenant_id, type, recipient_hash, channel, recipient_hint, state, tries, max_tries, tried_at, message_id,
    sent_at, expires_at, forget_at, principal, request_id) on notify_codes to ledgerd_audit;

create view audit.codes as
select t.name as tenant, c.type, c.channel, c.recipient_hint,
    case when c.state = 'open' and c.expires_at <= now() then 'expired'
        when c.state = 'open' and c.tries >= c.max_tries then 'spoilt' else c.state end as state,
    c.tries, c.max_tries, c.message_id, c.sent_at[cardinality(c.sent_at)] as sent_at,
    cardinality(c.sent_at) as sent_in_a_day, c.expires_at,
    c.principal, c.request_id,
    (select count(*) from notify_codes w cross join unnest(w.sent_at) at
        where w.tenant_id = c.tenant_id and w.type = '*' and w.recipient_hash = c.recipient_hash
            and at > now() - interval '24 h') as wrong_in_a_day
from notify_codes c
left join access_tenants t on t.tenant_id = c.tenant_id
where c.forget_at > now() and c.type <> '*';
comment on view audit.codes is
    'Verification codes, the last of each type for each recipient, with their state. The codes themselves are not '
    'stored.';
comment on column audit.codes.tenant is 'Name of the tenant.';
comment on column audit.codes.type is 'Type of the code.';
comment on column audit.codes.channel is 'sms or email.';
comment on column audit.codes.recipient_hint is 'The recipient, masked.';
comment on column audit.codes.state is
    'open; expired; spoilt: by wrong tries; used; none: no code was sent. A code whose message is dead is void, '
    'whatever the state.';
comment on column audit.codes.tries is 'Wrong tries.';
comment on column audit.codes.max_tries is 'Wrong tries that it allows.';
comment on column audit.codes.message_id is 'Message with the code.';
comment on column audit.codes.sent_at is 'When it was sent.';
comment on column audit.codes.sent_in_a_day is 'Codes sent to the recipient in the last 24 hours.';
comment on column audit.codes.wrong_in_a_day is 'Wrong codes of any type tried for the recipient in the last 24 hours.';
comment on column audit.codes.expires_at is 'When it expires.';
comment on column audit.codes.principal is 'Principal that sent it.';
comment on column audit.codes.request_id is 'X-Request-ID of that call.';
grant select on audit.codes to ledgerd_audit;

create view audit.templates as
select t.name as tenant, v.channel, v.name, v.locale, v.version,
    m.versions[array_position(m.locales, v.locale)] = v.version and m.deleted_at is null as current,
    m.deleted_at, v.principal, v.request_id, v.created_at, v.definition
from notify_template_versions v
join notify_templates m on m.tenant_id = v.tenant_id and m.channel = v.channel and m.name = v.name
left join access_tenants t on t.tenant_id = v.tenant_id;
comment on view audit.templates is 'Templates of messages, with all their versions.';
comment on column audit.templates.tenant is 'Name of the tenant.';
comment on column audit.templates.channel is 'sms, email or push.';
comment on column audit.templates.name is 'Name of the template.';
comment on column audit.templates.locale is 'Locale of the version.';
comment on column audit.templates.version is 'Version.';
comment on column audit.templates.current is 'True if this is the present version of its locale.';
comment on column audit.templates.deleted_at is 'When the template was deleted.';
comment on column audit.templates.principal is 'Principal that created the version.';
comment on column audit.templates.request_id is 'X-Request-ID of the call that created it.';
comment on column audit.templates.created_at is 'When it was created.';
comment on column audit.templates.definition is 'Definition of the version.';
grant select on audit.templates to ledgerd_audit;
reset role;

-- +goose Down
drop view audit.templates;
drop view audit.codes;
drop table notify_codes;
drop table notify_template_versions;
drop table notify_templates;
drop view audit.webhook_endpoints;
drop table notify_endpoints;
