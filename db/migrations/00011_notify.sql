-- Messages to people and systems, which are accepted in the commit of their cause; webhook endpoints, templates of
-- messages, and verification codes. Messages have separate tables by lifetime (ADR 10): messages and events are kept
-- until the owner drops them, contents are deleted after some weeks, and rows of the queue change often. Locks nothing.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
set local role ledgerd_owner;

-- The root secret, encrypted under a master key of the servers' configuration.
create table secret_roots (
    root       integer not null,
    key_id     text collate "C" not null,
    sealed     bytea not null,
    created_at timestamptz not null default clock_timestamp(),
    sealed_at  timestamptz not null default clock_timestamp(),
    constraint secret_roots_pkey primary key (root),
    constraint secret_roots_root_check check (root = 1),
    constraint secret_roots_key_id_check check (key_id ~ '^[0-9a-f]{8}$'),
    constraint secret_roots_sealed_check check (octet_length(sealed) = 60)
);
comment on table secret_roots is
    'The root secret, from which all keys are derived that must not be in the database. It is encrypted under a '
    'master key; another master key encrypts the same root secret again, so that no derived key changes.';
comment on column secret_roots.root is 'Always 1.';
comment on column secret_roots.key_id is 'Id of the master key, derived from it.';
comment on column secret_roots.sealed is 'The root secret: nonce, AES-256-GCM.';
comment on column secret_roots.created_at is 'When it was made.';
comment on column secret_roots.sealed_at is 'When it was last encrypted.';
-- Only the owner may replace it: without it, codes, webhook secrets and hashes would be lost.
grant select, insert on secret_roots to ledgerd_app;
grant select (root, key_id, created_at, sealed_at) on secret_roots to ledgerd_audit;

-- One row per message, as accepted. It never changes.
create table notify_messages (
    tenant_id      integer not null,
    message_id     bigint not null,
    month          date not null,
    channel        text collate "C" not null,
    business_type  text collate "C" not null,
    biz_no         text collate "C",
    template       text collate "C",
    locale         text collate "C",
    recipient_hash bytea not null,
    recipient_hint text not null,
    content_hash   bytea not null,
    fingerprint    bytea,
    priority       smallint not null,
    on_unknown     text collate "C" not null,
    max_attempts   integer not null,
    not_before     timestamptz,
    give_up_at     timestamptz not null,
    contents_until date not null,
    accepted_at    timestamptz not null,
    principal      text collate "C" not null,
    request_id     text collate "C" not null,
    constraint notify_messages_pkey primary key (tenant_id, message_id, month),
    constraint notify_messages_month_check check (month = date_trunc('month', accepted_at at time zone 'UTC')::date),
    constraint notify_messages_channel_check check (channel in ('sms', 'email', 'push', 'webhook')),
    constraint notify_messages_business_type_check check (octet_length(business_type) <= 64),
    constraint notify_messages_biz_no_check check (octet_length(biz_no) between 1 and 128),
    constraint notify_messages_recipient_hash_check check (octet_length(recipient_hash) = 16),
    constraint notify_messages_recipient_hint_check check (char_length(recipient_hint) <= 64),
    constraint notify_messages_content_hash_check check (octet_length(content_hash) = 32),
    constraint notify_messages_fingerprint_check check (octet_length(fingerprint) = 16),
    constraint notify_messages_priority_check check (priority between 0 and 2),
    constraint notify_messages_on_unknown_check check (on_unknown in ('park', 'resend', 'never')),
    constraint notify_messages_max_attempts_check check (max_attempts between 1 and 100)
) partition by range (month);
create index notify_messages_request_idx on notify_messages 
    using brin (request_id text_bloom_ops, accepted_at timestamptz_minmax_ops) with (pages_per_range = 8);
-- Without the tenant, which the hash includes. With the tenant first, a plan for a lookup by primary key that was made
-- while the table was empty could use this index.
create index notify_messages_recipient_idx on notify_messages (recipient_hash, message_id);
comment on table notify_messages is
    'Outgoing messages as accepted, without recipients and contents. Rows never change: they prove what was '
    'requested. One partition per month.';
comment on column notify_messages.tenant_id is 'Tenant.';
comment on column notify_messages.message_id is 'Number of the message; message_id >> 14 is the batch that created it.';
comment on column notify_messages.month is 'First day of the month of accepted_at, UTC. Partition key.';
comment on column notify_messages.channel is 'sms, email, push or webhook.';
comment on column notify_messages.business_type is 'Business type, such as order.paid. Part of the fingerprint.';
comment on column notify_messages.biz_no is 'The caller''s business number, which is unique in notify_names.';
comment on column notify_messages.template is 'Template, as name@version; null: the caller gave the content.';
comment on column notify_messages.locale is 'Locale of the template.';
comment on column notify_messages.recipient_hash is
    'Keyed hash of tenant, channel and recipient. Finds all messages to a recipient without revealing it.';
comment on column notify_messages.recipient_hint is
    'The recipient, masked, such as +86138****5678 or a***@example.com.';
comment on column notify_messages.content_hash is
    'Keyed hash of the content. Proves later what was sent, without revealing it to a reader of the database.';
comment on column notify_messages.fingerprint is
    'Fingerprint that recognises repeats within the window; null: not requested.';
comment on column notify_messages.priority is '0 high, 1 normal, 2 low.';
comment on column notify_messages.on_unknown is
    'Policy after an attempt with unknown outcome. park: an operator or a delivery report settles '
    'it; resend: it is sent again, with the same key for the provider; never: as park, and it cannot be requeued.';
comment on column notify_messages.max_attempts is 'Attempts after which it is dead.';
comment on column notify_messages.not_before is 'Not sent before this time; null: at once.';
comment on column notify_messages.give_up_at is 'Not tried after this time.';
comment on column notify_messages.contents_until is
    'Day, UTC, from whose beginning its content cannot be read. Partition key of notify_contents.';
comment on column notify_messages.accepted_at is 'When it was accepted: time of its batch.';
comment on column notify_messages.principal is 'Principal that requested it.';
comment on column notify_messages.request_id is 'X-Request-ID of the call that requested it.';

-- Recipients and contents, dropped by weekly partitions.
create table notify_contents (
    tenant_id      integer not null,
    message_id     bigint not null,
    contents_until date not null,
    recipient      text not null,
    content        bytea not null,
    constraint notify_contents_pkey primary key (tenant_id, message_id, contents_until),
    constraint notify_contents_recipient_check check (octet_length(recipient) between 1 and 2048),
    constraint notify_contents_content_check check (octet_length(content) <= 1048576)
) partition by range (contents_until);
comment on table notify_contents is
    'Recipients and contents of messages. One partition per week of contents_until, dropped at the end of that '
    'week: every statement that reads contents must check contents_until. Contents that cannot be sent again are '
    'deleted earlier. notify_messages stays.';
comment on column notify_contents.tenant_id is 'Tenant.';
comment on column notify_contents.message_id is 'The message.';
comment on column notify_contents.contents_until is
    'Day, UTC, from whose beginning it cannot be read. It is deleted within seven days. Partition key.';
comment on column notify_contents.recipient is 'Phone number in E.164, e-mail address, device token or endpoint.';
comment on column notify_contents.content is
    'JSON: subject, text, HTML, attachments and data. The content of a verification code is encrypted, after a '
    'zero byte, under a key that is not in the database.';

-- One row per event of a message. It never changes.
create table notify_events (
    tenant_id           integer not null,
    message_id          bigint not null,
    month               date not null,
    event_id            bigint not null,
    kind                text collate "C" not null,
    attempt             integer not null,
    provider            text collate "C",
    provider_message_id text collate "C",
    failure_code        text collate "C",
    failure_text        text,
    at                  timestamptz not null,
    instance            text collate "C" not null,
    principal           text collate "C",
    request_id          text collate "C",
    constraint notify_events_pkey primary key (tenant_id, message_id, month, event_id),
    constraint notify_events_kind_check check (
        kind in ('sent', 'failed', 'unknown', 'dead', 'cancelled', 'requeued', 'delivered', 'undelivered')),
    constraint notify_events_provider_check check (octet_length(provider) between 1 and 64),
    constraint notify_events_provider_message_id_check check (octet_length(provider_message_id) between 1 and 256),
    constraint notify_events_failure_code_check check (octet_length(failure_code) between 1 and 64),
    constraint notify_events_failure_text_check check (octet_length(failure_text) <= 2048)
) partition by range (month);
create index notify_events_provider_idx on notify_events (provider_message_id, provider)
    where kind = 'sent' and provider_message_id is not null;
create index notify_events_request_idx on notify_events (request_id) where request_id is not null;
comment on table notify_events is
    'Events of messages. Rows never change: they prove what was sent. One partition per month of the message.';
comment on column notify_events.tenant_id is 'Tenant.';
comment on column notify_events.message_id is 'The message.';
comment on column notify_events.month is 'Month of the message. Partition key.';
comment on column notify_events.event_id is
    'Distinguishes the events of a message. For the outcome of an attempt: the fence of the attempt. For a call: a '
    'row id, where id >> 14 is its batch. Not in the order of time: order by at.';
comment on column notify_events.kind is
    'sent: a provider accepted it; failed: the attempt failed, and another one follows; unknown: it is unknown '
    'whether the attempt sent it; dead: no more attempts follow; cancelled; requeued: by an operator; delivered, '
    'undelivered: reported by the provider.';
comment on column notify_events.attempt is 'Number of the attempt, from 1; 0: not an attempt.';
comment on column notify_events.provider is 'Provider, as named in the configuration.';
comment on column notify_events.provider_message_id is 'The provider''s id of the message.';
comment on column notify_events.failure_code is 'Error code, to group dead messages by.';
comment on column notify_events.failure_text is 'Error text of the provider, without recipients and secrets.';
comment on column notify_events.at is 'Time of the event, by the database''s clock.';
comment on column notify_events.instance is 'Process that wrote it.';
comment on column notify_events.principal is
    'Principal that cancelled, requeued or reported; provider:NAME for a provider; null for the result of an '
    'attempt.';
comment on column notify_events.request_id is 'X-Request-ID of that call.';

-- Open messages. A row is deleted when its message is sent or cancelled.
create table notify_queue (
    tenant_id      integer not null,
    message_id     bigint not null,
    channel        text collate "C" not null,
    priority       smallint not null,
    state          text collate "C" not null,
    due_at         timestamptz,
    holder         text collate "C",
    fence          bigint not null,
    attempts       integer not null,
    max_attempts   integer not null,
    on_unknown     text collate "C" not null,
    give_up_at     timestamptz not null,
    month          date not null,
    contents_until date not null,
    provider       text collate "C",
    unsure         boolean not null default false,
    failure_code   text collate "C",
    constraint notify_queue_pkey primary key (tenant_id, message_id),
    constraint notify_queue_state_check check (state in ('queued', 'sending', 'failed', 'unknown', 'dead')),
    constraint notify_queue_due_check check ((due_at is not null) = (state in ('queued', 'sending', 'failed'))),
    constraint notify_queue_holder_check check (holder is null or state in ('queued', 'sending', 'failed')),
    constraint notify_queue_fence_check check (fence >= 0),
    constraint notify_queue_attempts_check check (attempts >= 0),
    constraint notify_queue_on_unknown_check check (on_unknown in ('park', 'resend', 'never'))
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
create index notify_queue_due_idx on notify_queue (tenant_id, channel, priority, due_at) where due_at is not null;
create index notify_queue_parked_idx on notify_queue (tenant_id, state, failure_code, message_id) where due_at is null;
create index notify_queue_gone_idx on notify_queue (contents_until) where due_at is null;
comment on table notify_queue is
    'Open messages: to be sent, being sent, unknown or dead. Unknown and dead ones stay until 30 days after their '
    'contents. The table is narrow: contents are in notify_contents.';
comment on column notify_queue.tenant_id is 'Tenant.';
comment on column notify_queue.message_id is 'The message.';
comment on column notify_queue.channel is 'Its channel.';
comment on column notify_queue.priority is '0 high, 1 normal, 2 low.';
comment on column notify_queue.state is
    'queued; sending: an attempt of a message that must not be sent twice has begun, and past due_at its outcome '
    'is unknown; failed: tried again at due_at; unknown, dead: an operator or a delivery report settles it.';
comment on column notify_queue.due_at is
    'When any process may take it: the time of the next attempt, or the end of the holder''s lease.';
comment on column notify_queue.holder is 'Process that has leased it until due_at; null: none.';
comment on column notify_queue.fence is
    'Fence. Grows whenever it is taken, cancelled or requeued: writes of an earlier holder are refused.';
comment on column notify_queue.attempts is 'Attempts begun since it was accepted or requeued.';
comment on column notify_queue.max_attempts is 'Attempts after which it is dead.';
comment on column notify_queue.on_unknown is 'The same as in notify_messages.';
comment on column notify_queue.give_up_at is 'The same as in notify_messages.';
comment on column notify_queue.month is 'The same as in notify_messages.';
comment on column notify_queue.contents_until is 'The same as in notify_messages.';
comment on column notify_queue.provider is 'Provider that failed last: the next attempt uses the one after it.';
comment on column notify_queue.unsure is
    'True if provider may have sent it in an attempt with unknown outcome. Then only that provider is tried again, '
    'because it may recognise the key.';
comment on column notify_queue.failure_code is 'Error code of the last failure.';

create table notify_names (
    tenant_id    integer not null,
    biz_no       text collate "C" not null,
    message_id   bigint not null,
    request_hash bytea not null,
    constraint notify_names_pkey primary key (tenant_id, biz_no),
    constraint notify_names_biz_no_check check (octet_length(biz_no) between 1 and 128),
    constraint notify_names_request_hash_check check (octet_length(request_hash) = 32)
);
comment on table notify_names is
    'Business numbers of messages, kept for ever. Each names one message, which is sent once.';
comment on column notify_names.tenant_id is 'Tenant.';
comment on column notify_names.biz_no is 'The caller''s business number.';
comment on column notify_names.message_id is
    'Message that it names: the one accepted with it, or, if the call was a repeat by content, the first message.';
comment on column notify_names.request_hash is
    'Keyed hash of content, recipient and business type: a repeat with another hash is refused.';

create table notify_fingerprints (
    tenant_id   integer not null,
    channel     text collate "C" not null,
    fingerprint bytea not null,
    message_id  bigint not null,
    expires_at  timestamptz not null,
    constraint notify_fingerprints_pkey primary key (tenant_id, channel, fingerprint),
    constraint notify_fingerprints_fingerprint_check check (octet_length(fingerprint) = 16)
) with (autovacuum_vacuum_scale_factor = 0.02);
create index notify_fingerprints_expires_idx on notify_fingerprints (expires_at);
comment on table notify_fingerprints is
    'Fingerprints of recent messages: a repeat within the window is answered with the first message. A row past '
    'expires_at counts as deleted.';
comment on column notify_fingerprints.tenant_id is 'Tenant.';
comment on column notify_fingerprints.channel is 'Channel.';
comment on column notify_fingerprints.fingerprint is
    '16 bytes of a keyed hash of recipient, content and business type, each prefixed by its length.';
comment on column notify_fingerprints.message_id is 'First message.';
comment on column notify_fingerprints.expires_at is
    'End of the window, which starts when the first message was accepted.';

create table notify_limits (
    tenant_id    integer not null,
    channel      text collate "C" not null,
    scope        text collate "C" not null,
    window_s     integer not null,
    max_messages integer not null,
    constraint notify_limits_pkey primary key (tenant_id, channel, scope, window_s),
    constraint notify_limits_channel_check check (channel in ('*', 'code', 'sms', 'email', 'push', 'webhook')),
    constraint notify_limits_scope_check check (scope in ('tenant', 'channel', 'recipient', 'ip', 'prefix')),
    constraint notify_limits_window_check check (window_s between 1 and 2678400),
    constraint notify_limits_max_messages_check check (max_messages >= 0)
);
comment on table notify_limits is 'Limits on the messages that are accepted from a tenant in any time window.';
comment on column notify_limits.tenant_id is 'Tenant.';
comment on column notify_limits.channel is
    'Channel; code: verification codes on any channel; *: all channels together.';
comment on column notify_limits.scope is
    'Unit of counting. tenant: all together; channel: every channel; recipient: every recipient; ip: every '
    'client_ip, of IPv6 the first 64 bits; prefix: every phone number without its last four digits.';
comment on column notify_limits.window_s is 'Length of the window, in seconds.';
comment on column notify_limits.max_messages is 'Limit in any window of this length.';

create table notify_counters (
    tenant_id  integer not null,
    channel    text collate "C" not null,
    scope      text collate "C" not null,
    window_s   integer not null,
    subject    bytea not null,
    slot       bigint not null,
    counts     integer[] not null,
    expires_at timestamptz not null,
    constraint notify_counters_pkey primary key (tenant_id, channel, scope, window_s, subject),
    constraint notify_counters_subject_check check (octet_length(subject) <= 16),
    constraint notify_counters_counts_check check (cardinality(counts) = 61)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
create index notify_counters_expires_idx on notify_counters (expires_at);
comment on table notify_counters is
    'Recently accepted messages, counted for limits in the transaction that accepts them. A row past expires_at '
    'counts as zero.';
comment on column notify_counters.tenant_id is 'Tenant.';
comment on column notify_counters.channel is 'The same as in notify_limits.';
comment on column notify_counters.scope is 'The same as in notify_limits.';
comment on column notify_counters.window_s is 'The same as in notify_limits.';
comment on column notify_counters.subject is
    'Keyed hash of the recipient, IP address or prefix, or the channel; empty for the scope tenant.';
comment on column notify_counters.slot is
    'Number of the newest slot. A slot is a sixtieth of the window, numbered from 1970.';
comment on column notify_counters.counts is
    'Counts of the newest slot and the 60 before it, newest first. They cover a whole window before any time in '
    'the newest slot, so no window ever exceeds the limit, and capacity returns up to a sixtieth of the window '
    'late.';
comment on column notify_counters.expires_at is 'When all counts have left the window.';

-- +goose StatementBegin
create function notify_add_partition(parent text, suffix text, low date, high date) returns integer
    language plpgsql
    set search_path from current
    as $$
begin
    -- By its schema: to_regclass would also find a temporary table.
    if not exists (select from pg_class c join pg_class p on p.relnamespace = c.relnamespace
        where p.oid = parent::regclass and c.relname = parent || '_' || suffix)
    then
        -- CREATE TABLE ... PARTITION OF would lock the parent exclusively; ATTACH PARTITION does not.
        execute format('create table %I (like %I including all)', parent || '_' || suffix, parent);
        execute format('alter table %I attach partition %I for values from (%L) to (%L)',
            parent, parent || '_' || suffix, low, high);
        return 1;
    end if;
    return 0;
end
$$;
-- +goose StatementEnd
comment on function notify_add_partition is 'Creates a partition unless it exists. Returns how many it created.';

-- +goose StatementBegin
create function notify_drop_partition(parent text, part text) returns boolean
    language plpgsql
    set search_path from current
    set lock_timeout = '50ms'
    as $$
declare
    holders text[];
begin
    -- DROP TABLE needs an exclusive lock on the parent, and while it waits for that lock, all later transactions wait
    -- behind it. So do not try if the same transaction holds a lock in two checks 100 ms apart: that is longer than a
    -- batch. A copy of the database may have a relation with the same oid: check only locks of this database.
    holders := array(select l.virtualtransaction from pg_locks l
        join pg_database d on d.oid = l.database and d.datname = current_database()
        where l.relation in (to_regclass(parent), to_regclass(part)) and l.pid <> pg_backend_pid());
    if cardinality(holders) > 0 then
        perform pg_sleep(0.1);
        if exists (select from pg_locks l
            join pg_database d on d.oid = l.database and d.datname = current_database()
            where l.relation in (to_regclass(parent), to_regclass(part))
                and l.virtualtransaction = any(holders))
        then
            return false;
        end if;
    end if;
    execute format('drop table %I', part);
    return true;
exception when lock_not_available then
    return false;
end
$$;
-- +goose StatementEnd
comment on function notify_drop_partition is
    'Drops a partition unless another session uses it. Blocks other sessions for at most 50 ms.';

-- +goose StatementBegin
create function notify_keep_partitions(out made integer, out dropped integer, out left_over integer)
    language plpgsql
    security definer
    set search_path from current
    set lock_timeout = '1s'
    as $$
declare
    today date := (clock_timestamp() at time zone 'UTC')::date;
    first date; -- day of a partition
    part record;
begin
    made := 0; dropped := 0; left_over := 0;
    lock table only notify_events in share update exclusive mode; -- excludes other processes that do the same
    for n in 0..1 loop
        first := (date_trunc('month', today) + n * interval '1 month')::date;
        made := made
            + notify_add_partition('notify_messages', to_char(first, 'YYYYMM'), first,
                (first + interval '1 month')::date)
            + notify_add_partition('notify_events', to_char(first, 'YYYYMM'), first,
                (first + interval '1 month')::date);
    end loop;
    first := date_trunc('week', (today + 1)::timestamp)::date; -- no new content ends earlier than tomorrow
    while first <= today + 71 loop
        made := made + notify_add_partition('notify_contents', to_char(first, 'YYYYMMDD'), first, first + 7);
        first := first + 7;
    end loop;
    for part in
        select c.relname::text as name from pg_inherits i
        join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'notify_contents'::regclass
        order by c.relname
    loop
        exit when to_date(right(part.name, 8), 'YYYYMMDD') + 6 > today; -- the last contents_until in it
        if notify_drop_partition('notify_contents', part.name) then
            dropped := 1;
            return; -- the parent is locked until the end of the transaction
        end if;
        left_over := left_over + 1;
    end loop;
end
$$;
-- +goose StatementEnd
comment on function notify_keep_partitions is
    'Creates the partitions of this and the next month, and those of contents for 71 days, and drops one partition '
    'of contents that have all expired; never one of messages or events. Call it in a transaction of its own until '
    'it drops none. Partitions in use by other sessions are left for the next call.';

-- +goose StatementBegin
create function notify_drop_proofs(months integer, out dropped integer, out left_over integer)
    language plpgsql
    set search_path from current
    as $$
declare
    part record;
begin
    dropped := 0; left_over := 0;
    if months < 4 then -- longer than any message can be open or parked
        raise exception 'months must be at least 4, since messages can be open or parked for nearly as long'
            using errcode = 'invalid_parameter_value';
    end if;
    for part in
        select c.relname::text as name, p.relname::text as parent from pg_inherits i
        join pg_class c on c.oid = i.inhrelid
        join pg_class p on p.oid = i.inhparent
        where p.oid in ('notify_messages'::regclass, 'notify_events'::regclass)
            and to_date(right(c.relname, 6), 'YYYYMM')
                < date_trunc('month', clock_timestamp() at time zone 'UTC') - months * interval '1 month'
        order by p.relname = 'notify_events', c.relname
    loop
        if part.parent = 'notify_events'
            and to_regclass('notify_messages_' || right(part.name, 6)) is not null
        then
            left_over := left_over + 1; -- the messages of the month are dropped first
        elsif notify_drop_partition(part.parent, part.name) then
            dropped := 1;
            return; -- the parent is locked until the end of the transaction
        else
            left_over := left_over + 1;
        end if;
    end loop;
end
$$;
-- +goose StatementEnd
comment on function notify_drop_proofs is
    'Drops one partition of messages and events that is older than the given number of full months, at least 4. '
    'Only the owner may call it. Call it in a transaction of its own until it drops none. Partitions in use by '
    'other sessions are left.';
revoke execute on function notify_keep_partitions, notify_drop_proofs, notify_add_partition, notify_drop_partition
    from public;
grant execute on function notify_keep_partitions to ledgerd_app;
select notify_keep_partitions();

create trigger notify_messages_append_only before update or delete on notify_messages
    for each row execute function commit_append_only();
create trigger notify_events_append_only before update or delete on notify_events
    for each row execute function commit_append_only();

grant select, insert on notify_messages, notify_events, notify_names to ledgerd_app;
grant select, insert, delete on notify_contents, notify_queue, notify_fingerprints, notify_counters to ledgerd_app;
grant select on notify_limits to ledgerd_app;
grant update (state, due_at, holder, fence, attempts, max_attempts, give_up_at, provider, unsure, failure_code)
    on notify_queue to ledgerd_app;
grant update (message_id, expires_at) on notify_fingerprints to ledgerd_app;
grant update (slot, counts, expires_at) on notify_counters to ledgerd_app;
grant select, insert, delete on notify_limits to ledgerd_admin;
grant update (max_messages) on notify_limits to ledgerd_admin;
grant select on notify_messages, notify_events, notify_queue, notify_names, notify_fingerprints, notify_limits,
    notify_counters to ledgerd_audit;
-- Without recipients and contents.
grant select (tenant_id, message_id, contents_until) on notify_contents to ledgerd_audit;

create view audit.notifications as
select t.name as tenant, m.message_id, m.channel, m.business_type, m.biz_no, m.template, m.locale,
    m.recipient_hint, m.recipient_hash, m.content_hash,
    coalesce(q.state, e.kind) as state, coalesce(q.attempts, e.attempt) as attempts,
    coalesce(q.provider, e.provider) as provider, e.provider_message_id,
    coalesce(q.failure_code, e.failure_code) as failure_code, q.due_at,
    coalesce(q.give_up_at, m.give_up_at) as give_up_at, m.not_before, m.accepted_at, e.at as ended_at,
    m.contents_until, m.on_unknown, m.principal, m.request_id
from notify_messages m
left join access_tenants t on t.tenant_id = m.tenant_id
left join notify_queue q on q.tenant_id = m.tenant_id and q.message_id = m.message_id
left join lateral (
    select x.kind, x.attempt, x.provider, x.provider_message_id, x.failure_code, x.at from notify_events x
    where x.tenant_id = m.tenant_id and x.message_id = m.message_id and x.month = m.month
        and (x.kind in ('sent', 'cancelled', 'delivered', 'undelivered')
            or x.kind in ('dead', 'unknown') and q.message_id is null)
    order by x.kind in ('dead', 'unknown'), x.kind <> 'sent' desc, x.at desc, x.event_id desc
    limit 1
) e on true;
comment on view audit.notifications is 'Outgoing messages with their state. No view shows contents or recipients.';
comment on column audit.notifications.tenant is 'Name of the tenant.';
comment on column audit.notifications.message_id is 'Number of the message; message_id >> 14 is its batch.';
comment on column audit.notifications.channel is 'sms, email, push or webhook.';
comment on column audit.notifications.business_type is 'Business type.';
comment on column audit.notifications.biz_no is 'The caller''s business number.';
comment on column audit.notifications.template is 'Template, as name@version; null: the caller gave the content.';
comment on column audit.notifications.locale is 'Locale of the template.';
comment on column audit.notifications.recipient_hint is 'The recipient, masked.';
comment on column audit.notifications.recipient_hash is
    'Keyed hash of the recipient: equal in all messages of a channel to the same recipient.';
comment on column audit.notifications.content_hash is 'Keyed hash of the content.';
comment on column audit.notifications.state is
    'queued, sending, failed, unknown or dead while it is open; then sent, delivered, undelivered or cancelled.';
comment on column audit.notifications.attempts is 'Attempts since it was accepted or requeued.';
comment on column audit.notifications.provider is 'Provider that failed last, accepted it, or reported on it.';
comment on column audit.notifications.provider_message_id is 'The provider''s id of the message.';
comment on column audit.notifications.failure_code is 'Error code of the last failure.';
comment on column audit.notifications.due_at is 'When any process may take it; null: it is not waiting.';
comment on column audit.notifications.give_up_at is 'Not tried after this time.';
comment on column audit.notifications.not_before is 'Not sent before this time.';
comment on column audit.notifications.accepted_at is 'When it was accepted.';
comment on column audit.notifications.ended_at is 'When it was sent, cancelled, reported on, or became dead for good.';
comment on column audit.notifications.contents_until is
    'Day, UTC, from whose beginning its recipient and content cannot be read. They are deleted within seven days.';
comment on column audit.notifications.on_unknown is
    'Policy after an attempt with unknown outcome: park, resend or never.';
comment on column audit.notifications.principal is 'Principal that requested it.';
comment on column audit.notifications.request_id is 'X-Request-ID of the call that requested it.';

create view audit.notification_events as
select t.name as tenant, e.message_id, e.kind, e.attempt, e.at, e.provider, e.provider_message_id,
    e.failure_code, e.failure_text, e.instance, e.principal, e.request_id
from notify_events e
left join access_tenants t on t.tenant_id = e.tenant_id;
comment on view audit.notification_events is 'Events of messages: they prove what was sent.';
comment on column audit.notification_events.tenant is 'Name of the tenant.';
comment on column audit.notification_events.message_id is 'The message.';
comment on column audit.notification_events.kind is
    'sent, failed, unknown, dead, cancelled, requeued, delivered, undelivered.';
comment on column audit.notification_events.attempt is 'Number of the attempt; 0: not an attempt.';
comment on column audit.notification_events.at is 'Time of the event.';
comment on column audit.notification_events.provider is 'Provider.';
comment on column audit.notification_events.provider_message_id is 'The provider''s id of the message.';
comment on column audit.notification_events.failure_code is 'Error code.';
comment on column audit.notification_events.failure_text is 'Error text of the provider.';
comment on column audit.notification_events.instance is 'Process that wrote it.';
comment on column audit.notification_events.principal is 'Principal of the caller; null for the result of an attempt.';
comment on column audit.notification_events.request_id is 'X-Request-ID of that call.';

create view audit.notification_numbers as
select t.name as tenant, n.biz_no, n.message_id
from notify_names n
left join access_tenants t on t.tenant_id = n.tenant_id;
comment on view audit.notification_numbers is 'Messages by the callers'' business numbers, found by an index.';
comment on column audit.notification_numbers.tenant is 'Name of the tenant.';
comment on column audit.notification_numbers.biz_no is 'The caller''s business number.';
comment on column audit.notification_numbers.message_id is
    'Message that it names. If the call was a repeat by content, this is the first message, which may have another '
    'biz_no.';
grant select on audit.notifications, audit.notification_events, audit.notification_numbers to ledgerd_audit;

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
drop view audit.notification_numbers;
drop view audit.notification_events;
drop view audit.notifications;
drop table notify_counters;
drop table notify_limits;
drop table notify_fingerprints;
drop table notify_names;
drop table notify_queue;
drop table notify_events;
drop table notify_contents;
drop table notify_messages;
drop function notify_drop_proofs;
drop function notify_keep_partitions;
drop function notify_drop_partition;
drop function notify_add_partition;
drop table secret_roots;
