-- The view audit.requests: rows of all domains that a call created or changed. Locks nothing.
--
-- Only transfers and notifications have indexes on request ids. Rows of the other tables change or are deleted, and
-- new rows reuse their space: there any kind of index costs more than it saves (ADR 8). Those tables are scanned:
-- 0.15 to 0.2 s for a million claims, 0.4 s for a million works in their two branches of 'work', on a busy machine of
-- two cores. A condition on what excludes tables, so each kind of row has a branch, even if two share a table.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
set local role ledgerd_owner;

-- The planner uses the indexes on request ids only with a condition on the time.
create view audit.requests as
select t.name as tenant, r.request_id, r.at, r.what, r.name, r.detail, r.principal, r.id
from (
    select tenant_id, request_id, recorded_at as at, 'transfer'::text as what, biz_no as name, type as detail,
        principal, transfer_id as id
    from ledger_transfers where recorded_at > '-infinity'
    union all
    select tenant_id, request_id, created_at, 'hold', biz_no, state, principal, hold_id from ledger_holds
    union all
    select d.tenant_id, d.request_id, d.created_at, 'account', a.code, a.asset, null, d.account_id
    from ledger_account_details d
    left join ledger_accounts a on a.tenant_id = d.tenant_id and a.account_id = d.account_id
    union all
    select tenant_id, request_id, created_at, 'key', key, operation, principal, null from commit_keys where not refused
    union all
    select tenant_id, request_id, created_at, 'refusal', key, operation, principal, null from commit_keys where refused
    union all
    select tenant_id, request_id, issued_at, 'token', encode(token_hash, 'hex') collate "C", purpose, principal, null
    from token_submit_tokens
    union all
    select tenant_id, spent_request_id, spent_at, 'token spent', encode(token_hash, 'hex') collate "C", operation,
        spent_by, null
    from token_submit_tokens where spent_at is not null
    union all
    select tenant_id, request_id, claimed_at, 'claim', key, scope, principal, claim_id from claim_keys
    union all
    select tenant_id, request_id, begun_at, 'work', key, scope, principal, null from work_records
    union all
    select tenant_id, first_request_id, created_at, 'work', key, scope, null, null from work_records where attempt > 1
    union all
    select tenant_id, settled_request_id, settled_at, 'work settled', key, scope || ': ' || state, settled_by, null
    from work_records where settled_at is not null
    union all
    select tenant_id, request_id, received_at, 'message', message_id,
        concat_ws('/', consumer_group, nullif(part, '')) collate "C", principal, inbox_id
    from inbox_messages
    union all
    select tenant_id, last_request_id, greatest(started_at, finished_at, requeued_at), 'message changed', message_id,
        concat_ws('/', consumer_group, nullif(part, '')) || ': ' || state collate "C", null, inbox_id
    from inbox_messages where last_request_id <> request_id
    union all
    select tenant_id, request_id, acquired_at, 'lock', name, holder, principal, null from lock_locks
    union all
    select tenant_id, request_id, queued_at, 'waiter', name, holder, principal, null from lock_waiters
    union all
    select tenant_id, request_id, accepted_at, 'notification', biz_no,
        concat_ws('/', channel, nullif(business_type, '')) collate "C", principal, message_id
    from notify_messages where accepted_at > '-infinity'
    union all
    select tenant_id, request_id, at, 'notification changed', message_id::text collate "C", kind, principal, message_id
    from notify_events where request_id is not null
    union all
    select tenant_id, request_id, coalesce(sent_at[cardinality(sent_at)], expires_at), 'code',
        recipient_hint collate "C", type, principal, message_id
    from notify_codes where type <> '*'
    union all
    select tenant_id, request_id, created_at, 'template', (name || '@' || version) collate "C",
        (channel || '/' || locale) collate "C", principal, null
    from notify_template_versions
    union all
    select tenant_id, request_id, changed_at, 'endpoint', name, state, principal, endpoint_id from notify_endpoints
) r
left join access_tenants t on t.tenant_id = r.tenant_id;
comment on view audit.requests is
    'Rows that a call created or changed, by its X-Request-ID. Expired rows are missing, and messages, works and '
    'locks have only their last call. Transfers and notifications are found by indexes; all other tables are '
    'scanned, some 0.2 s for a million rows, unless a condition such as what = ''transfer'' excludes them.';
comment on column audit.requests.tenant is 'Name of the tenant.';
comment on column audit.requests.request_id is 'X-Request-ID of the call.';
comment on column audit.requests.at is 'When it was recorded. For a message that failed: when the attempt began.';
comment on column audit.requests.what is
    'transfer; hold; account; key; refusal: a key whose answer is a refusal; token: issued; token spent; claim: '
    'the first use of a key; work: begun; work settled; message: first delivered; message changed: by the last '
    'call that changed it; lock; waiter; notification: an outgoing message; notification changed: cancelled, '
    'requeued or reported on; code: the last one sent or tried; template: a version; endpoint: a webhook endpoint, '
    'created or last changed.';
comment on column audit.requests.name is
    'biz_no, account code, request key, SHA-256 of the token, claimed key, key of the work, message id, name of '
    'the lock, biz_no of the notification, number of the changed notification, masked recipient of the code, name '
    'and version of the template, or name of the endpoint.';
comment on column audit.requests.detail is
    'Type of the transfer, state of the hold, asset of the account, operation of the key, purpose of the token or '
    'operation that spent it, scope of the claim or the work, consumer group and part of the message, holder of '
    'the lock, channel and business type of the notification, kind of the change, type of the code, channel and '
    'locale of the template, or state of the endpoint. For settled or changed rows followed by a colon and the '
    'state.';
comment on column audit.requests.principal is
    'Principal of the caller; null for accounts, changes of messages, and first attempts at work that was begun '
    'again, which do not record it.';
comment on column audit.requests.id is
    'Id of the row, where id >> 14 is its batch; null for all but transfers, holds, accounts, claims, messages, '
    'notifications and endpoints. For a code it is the id of its notification.';
grant select on audit.requests to ledgerd_audit;
reset role;

-- +goose Down
drop view audit.requests;
