-- The inbox: one row per message and consumer group, so that a message takes effect once. Contents have a table of
-- their own, because they are wide and are deleted long before their messages. Locks nothing.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
set local role ledgerd_owner;

create table inbox_messages (
    tenant_id        integer not null,
    consumer_group   text collate "C" not null,
    message_id       text collate "C" not null,
    part             text collate "C" not null,
    inbox_id         bigint not null,
    topic            text collate "C" not null,
    content_sha256     bytea,
    state            text collate "C" not null,
    holder           text collate "C" not null,
    fence            bigint not null,
    lease_expires_at timestamptz,
    attempts         integer not null,
    max_attempts     integer not null,
    backoff_ms       bigint not null,
    max_backoff_ms   bigint not null,
    retry_at         timestamptz,
    failure_text     text collate "C",
    result           text collate "C",
    life_ms          bigint,
    received_at      timestamptz not null,
    begun_at         timestamptz not null,
    finished_at      timestamptz,
    requeued_at      timestamptz,
    expires_at       timestamptz,
    principal        text collate "C" not null,
    request_id       text collate "C" not null,
    last_request_id  text collate "C" not null,
    constraint inbox_messages_pkey primary key (tenant_id, consumer_group, message_id, part),
    constraint inbox_messages_consumer_group_check check (octet_length(consumer_group) between 1 and 128),
    constraint inbox_messages_message_id_check check (octet_length(message_id) between 1 and 256),
    constraint inbox_messages_part_check check (octet_length(part) <= 128),
    constraint inbox_messages_content_sha256_check check (octet_length(content_sha256) = 32),
    constraint inbox_messages_state_check check (state in ('processing', 'succeeded', 'failed', 'dead')),
    constraint inbox_messages_fence_check check (fence > 0),
    constraint inbox_messages_attempts_check check (attempts >= 0 and max_attempts >= 1),
    constraint inbox_messages_lease_check check ((state = 'processing') = (lease_expires_at is not null)),
    constraint inbox_messages_retry_check check ((state = 'failed') = (retry_at is not null)),
    constraint inbox_messages_finished_check check ((state in ('succeeded', 'dead')) = (finished_at is not null)),
    constraint inbox_messages_expires_check check (state = 'succeeded' or expires_at is null),
    constraint inbox_messages_failure_text_check check (octet_length(failure_text) <= 4096),
    constraint inbox_messages_result_check check (octet_length(result) <= 4096)
) with (autovacuum_vacuum_scale_factor = 0.02);
create unique index inbox_messages_id_key on inbox_messages (tenant_id, inbox_id);
create index inbox_messages_open_idx on inbox_messages (tenant_id, state, inbox_id) where state <> 'succeeded';
create index inbox_messages_expires_idx on inbox_messages (expires_at) where expires_at is not null;
comment on table inbox_messages is
    'Messages by consumer group. The row guarantees that a message takes effect once. A row past expires_at counts '
    'as deleted.';
comment on column inbox_messages.tenant_id is 'Tenant.';
comment on column inbox_messages.consumer_group is 'Consumer group.';
comment on column inbox_messages.message_id is 'Id of the message, from the broker or its sender.';
comment on column inbox_messages.part is 'Part of the message that is processed apart; empty: the whole message.';
comment on column inbox_messages.inbox_id is 'Number of the row; inbox_id >> 14 is the batch that created it.';
comment on column inbox_messages.topic is 'Topic or queue that it came from.';
comment on column inbox_messages.content_sha256 is 'SHA-256 of the content; null: not given.';
comment on column inbox_messages.state is
    'processing; succeeded: not processed again; failed: processed again from retry_at on; dead: waits for an '
    'operator.';
comment on column inbox_messages.holder is 'Consumer that is processing it, or was the last to.';
comment on column inbox_messages.fence is 'Fence. Grows with every attempt: writes of an earlier holder are refused.';
comment on column inbox_messages.lease_expires_at is
    'End of the holder''s lease. After it another consumer may take the message.';
comment on column inbox_messages.attempts is 'Attempts since it was received or requeued, including the present one.';
comment on column inbox_messages.max_attempts is 'Attempts after which it is dead.';
comment on column inbox_messages.backoff_ms is 'Backoff after the first failed attempt, in milliseconds.';
comment on column inbox_messages.max_backoff_ms is 'Longest backoff, in milliseconds.';
comment on column inbox_messages.retry_at is 'When a failed message may be processed again.';
comment on column inbox_messages.failure_text is 'Error of the last failed attempt.';
comment on column inbox_messages.result is 'Result as given by the consumer.';
comment on column inbox_messages.life_ms is 'How long the row is kept after success, in milliseconds; null: for ever.';
comment on column inbox_messages.received_at is 'When it was first received: time of its batch.';
comment on column inbox_messages.begun_at is 'When the last attempt began.';
comment on column inbox_messages.finished_at is 'When it succeeded or died.';
comment on column inbox_messages.requeued_at is 'When it was last requeued.';
comment on column inbox_messages.expires_at is 'When the row expires; null: never.';
comment on column inbox_messages.principal is 'Principal that first delivered it.';
comment on column inbox_messages.request_id is 'X-Request-ID of the call that first delivered it.';
comment on column inbox_messages.last_request_id is 'X-Request-ID of the call that changed it last.';

create table inbox_contents (
    tenant_id      integer not null,
    consumer_group text collate "C" not null,
    message_id     text collate "C" not null,
    part           text collate "C" not null,
    content        bytea not null,
    expires_at     timestamptz not null,
    content_sha256 bytea not null generated always as (sha256(content)) stored,
    constraint inbox_contents_pkey primary key (tenant_id, consumer_group, message_id, part),
    constraint inbox_contents_content_check check (octet_length(content) <= 1048576)
);
create index inbox_contents_expires_idx on inbox_contents (expires_at);
comment on table inbox_contents is
    'Contents of messages, kept for a limited time. Guarded by the row lock of the message.';
comment on column inbox_contents.tenant_id is 'Tenant.';
comment on column inbox_contents.consumer_group is 'Consumer group of the message.';
comment on column inbox_contents.message_id is 'Its id.';
comment on column inbox_contents.part is 'Its part.';
comment on column inbox_contents.content is 'Content as received.';
comment on column inbox_contents.expires_at is 'When it expires. A row past it counts as deleted.';
comment on column inbox_contents.content_sha256 is 'SHA-256 of the content, for checks by roles that may not read it.';

create view audit.inbox as
select t.name as tenant, m.consumer_group, m.message_id, m.part, m.topic,
    case when m.expires_at <= now() then 'expired' when m.lease_expires_at <= now() then 'lapsed' else m.state end
        as state,
    m.holder, m.fence, m.lease_expires_at, m.attempts, m.max_attempts, m.retry_at, m.failure_text,
    octet_length(m.result) as result_bytes,
    m.received_at, m.begun_at, m.finished_at, m.requeued_at, m.expires_at,
    m.principal, m.request_id, m.last_request_id,
    encode(m.content_sha256, 'hex') as content_sha256,
    (select octet_length(c.content) from inbox_contents c
        where c.tenant_id = m.tenant_id and c.consumer_group = m.consumer_group and c.message_id = m.message_id
        and c.part = m.part and c.expires_at > now()) as content_bytes,
    m.inbox_id
from inbox_messages m
left join access_tenants t on t.tenant_id = m.tenant_id;
comment on view audit.inbox is
    'Messages of all consumer groups, without their contents. Dead letters: where tenant = ... and state = ''dead''.';
comment on column audit.inbox.tenant is 'Name of the tenant.';
comment on column audit.inbox.consumer_group is 'Consumer group.';
comment on column audit.inbox.message_id is 'Its id.';
comment on column audit.inbox.part is 'Part of the message that is processed apart; empty: the whole message.';
comment on column audit.inbox.topic is 'Topic or queue that it came from.';
comment on column audit.inbox.state is
    'processing, succeeded, failed, dead; lapsed: the lease has expired; expired: the row counts as deleted.';
comment on column audit.inbox.holder is 'Consumer that is processing it, or was the last to.';
comment on column audit.inbox.fence is 'Fence. Grows with every attempt.';
comment on column audit.inbox.lease_expires_at is 'End of the holder''s lease.';
comment on column audit.inbox.attempts is 'Attempts since it was received or requeued.';
comment on column audit.inbox.max_attempts is 'Attempts after which it is dead.';
comment on column audit.inbox.retry_at is 'When a failed message may be processed again.';
comment on column audit.inbox.failure_text is 'Error of the last failed attempt.';
comment on column audit.inbox.result_bytes is 'Size of the result that the consumer gave; null: it gave none.';
comment on column audit.inbox.received_at is 'When it was first received.';
comment on column audit.inbox.begun_at is 'When the last attempt began.';
comment on column audit.inbox.finished_at is 'When it succeeded or died.';
comment on column audit.inbox.requeued_at is 'When it was last requeued.';
comment on column audit.inbox.expires_at is 'When the row expires; null: never.';
comment on column audit.inbox.principal is 'Principal that first delivered it.';
comment on column audit.inbox.request_id is 'X-Request-ID of the call that first delivered it.';
comment on column audit.inbox.last_request_id is 'X-Request-ID of the call that changed it last.';
comment on column audit.inbox.content_sha256 is 'SHA-256 of the content; null: not given.';
comment on column audit.inbox.content_bytes is 'Size of the content, while it is kept.';
comment on column audit.inbox.inbox_id is 'Number of the row; inbox_id >> 14 is its batch.';

grant select, insert, delete on inbox_messages, inbox_contents to ledgerd_app;
grant update (inbox_id, topic, content_sha256, state, holder, fence, lease_expires_at, attempts, max_attempts,
    backoff_ms, max_backoff_ms, retry_at, failure_text, result, life_ms, received_at, begun_at, finished_at,
    requeued_at,
    expires_at, principal, request_id, last_request_id) on inbox_messages to ledgerd_app;
grant update (content, expires_at) on inbox_contents to ledgerd_app;
grant select (tenant_id, consumer_group, message_id, part, inbox_id, topic, content_sha256, state, holder, fence,
    lease_expires_at, attempts, max_attempts, backoff_ms, max_backoff_ms, retry_at, failure_text, life_ms, received_at,
    begun_at, finished_at, requeued_at, expires_at, principal, request_id, last_request_id) on inbox_messages
    to ledgerd_audit;
grant select on audit.inbox to ledgerd_audit;
grant select (tenant_id, consumer_group, message_id, part, expires_at, content_sha256) on inbox_contents
    to ledgerd_audit;
reset role;

-- +goose Down
drop view audit.inbox;
drop table inbox_contents;
drop table inbox_messages;
