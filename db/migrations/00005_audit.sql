-- Schema audit: views for people with psql. Names of tenants instead of numbers, decimals instead of
-- minor units. Locks nothing. The views of what must never be are for a look; `ledgerd verify` does not
-- use them, since whoever can tamper with rows can also replace a view.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
create schema audit authorization ledgerd_owner;
set local role ledgerd_owner;
comment on schema audit is 'Views for auditors: start with audit.accounts, audit.statement, audit.requests.';

create function audit.decimal(minor numeric, scale integer) returns numeric
    language sql
    immutable strict parallel safe
    as $$ select minor * ('1e-' || scale)::numeric $$;
comment on function audit.decimal is 'Formats an amount of minor units as a decimal: audit.decimal(1230, 2) is 12.30.';

create view audit.accounts as
select t.name as tenant, a.code as account, a.asset, a.kind, a.state,
    audit.decimal(a.balance, a.scale) as balance,
    audit.decimal(a.held, a.scale) as held,
    audit.decimal(a.balance - a.held - a.min_balance, a.scale) as available,
    audit.decimal(a.min_balance, a.scale) as min_balance,
    audit.decimal(a.max_balance, a.scale) as max_balance,
    a.version as entries, a.last_entry_at, d.created_at, d.request_id, d.metadata, a.account_id
from ledger_accounts a
left join access_tenants t on t.tenant_id = a.tenant_id
left join ledger_account_details d on d.tenant_id = a.tenant_id and d.account_id = a.account_id;
comment on view audit.accounts is 'Accounts with their balances.';
comment on column audit.accounts.tenant is 'Name of the tenant.';
comment on column audit.accounts.account is 'Code of the account.';
comment on column audit.accounts.asset is 'Asset. A code has one account per asset.';
comment on column audit.accounts.kind is 'asset, liability, equity, income or expense.';
comment on column audit.accounts.state is 'open; frozen: can only be credited; closed: can be neither debited nor credited.';
comment on column audit.accounts.balance is 'Credits minus debits.';
comment on column audit.accounts.held is 'Sum of what is left of its open holds.';
comment on column audit.accounts.available is 'Available balance: balance - held - min_balance; null: unlimited.';
comment on column audit.accounts.min_balance is 'Lower limit of the balance; null: no limit.';
comment on column audit.accounts.max_balance is 'Upper limit of the balance; null: no limit.';
comment on column audit.accounts.entries is 'Number of its entries, which is also its version.';
comment on column audit.accounts.last_entry_at is 'Time of the newest entry.';
comment on column audit.accounts.created_at is 'When it was created.';
comment on column audit.accounts.request_id is 'X-Request-ID of the call that created it.';
comment on column audit.accounts.metadata is 'Metadata of the caller: names and values.';
comment on column audit.accounts.account_id is 'Id in ledger_accounts.';

create view audit.statement as
select t.name as tenant, a.code as account, a.asset, e.version as entry, e.recorded_at,
    coalesce(e.effective_at, e.recorded_at) as effective_at, j.biz_no, j.type,
    audit.decimal(e.amount, a.scale) as amount,
    audit.decimal(e.balance_after, a.scale) as balance,
    j.principal, j.request_id, e.transfer_id
from ledger_accounts a
join ledger_entries e on e.tenant_id = a.tenant_id and e.account_id = a.account_id
left join ledger_transfers j on j.tenant_id = e.tenant_id and j.transfer_id = e.transfer_id
left join access_tenants t on t.tenant_id = a.tenant_id;
comment on view audit.statement is 'Entries with the running balance. Name the tenant, the account and the asset; order by entry.';
comment on column audit.statement.tenant is 'Name of the tenant.';
comment on column audit.statement.account is 'Code of the account.';
comment on column audit.statement.asset is 'Asset.';
comment on column audit.statement.entry is 'Position in the account: 1, 2, 3, ... without gaps.';
comment on column audit.statement.recorded_at is 'When it was recorded, by the database''s clock. Never decreases with entry.';
comment on column audit.statement.effective_at is 'When it happened according to the caller, by default recorded_at.';
comment on column audit.statement.biz_no is 'The caller''s business number of the transfer.';
comment on column audit.statement.type is 'transfer, capture, reversal, or a type of the caller''s.';
comment on column audit.statement.amount is 'Positive for a credit, negative for a debit.';
comment on column audit.statement.balance is 'Balance after it.';
comment on column audit.statement.principal is 'Principal of the caller.';
comment on column audit.statement.request_id is 'X-Request-ID of the call.';
comment on column audit.statement.transfer_id is 'Id in ledger_transfers.';

create view audit.postings as
select t.name as tenant, j.biz_no, j.type, j.recorded_at, coalesce(j.effective_at, j.recorded_at) as effective_at,
    d.posting, f.code as from_account, k.code as to_account, d.asset, audit.decimal(c.amount, k.scale) as amount,
    r.biz_no as reverses, h.biz_no as hold, j.principal, j.request_id, j.metadata, j.transfer_id
from ledger_transfers j
left join access_tenants t on t.tenant_id = j.tenant_id
left join ledger_entries d on d.tenant_id = j.tenant_id and d.transfer_id = j.transfer_id and d.amount < 0
left join ledger_accounts f on f.tenant_id = d.tenant_id and f.account_id = d.account_id
left join ledger_entries c on c.tenant_id = j.tenant_id and c.transfer_id = j.transfer_id and c.posting = d.posting and c.amount > 0
left join ledger_accounts k on k.tenant_id = c.tenant_id and k.account_id = c.account_id
left join ledger_transfers r on r.tenant_id = j.tenant_id and r.transfer_id = j.reverses_id
left join ledger_holds h on h.tenant_id = j.tenant_id and h.hold_id = j.hold_id;
comment on view audit.postings is 'Transfers, one row per posting.';
comment on column audit.postings.tenant is 'Name of the tenant.';
comment on column audit.postings.biz_no is 'The caller''s business number.';
comment on column audit.postings.type is 'transfer, capture, reversal, or a type of the caller''s.';
comment on column audit.postings.recorded_at is 'When it was recorded, by the database''s clock.';
comment on column audit.postings.effective_at is 'When it happened according to the caller, by default recorded_at.';
comment on column audit.postings.posting is 'Index of the posting in the transfer, from 0.';
comment on column audit.postings.from_account is 'Account that was debited.';
comment on column audit.postings.to_account is 'Account that was credited.';
comment on column audit.postings.asset is 'Asset.';
comment on column audit.postings.amount is 'Amount that was moved.';
comment on column audit.postings.reverses is 'biz_no of the transfer that it reverses.';
comment on column audit.postings.hold is 'biz_no of the hold that it captured from.';
comment on column audit.postings.principal is 'Principal of the caller.';
comment on column audit.postings.request_id is 'X-Request-ID of the call.';
comment on column audit.postings.metadata is 'Metadata of the caller: names and values.';
comment on column audit.postings.transfer_id is 'Id in ledger_transfers.';

create view audit.trial_balance as
select t.name as tenant, a.asset, count(*) as accounts,
    audit.decimal(coalesce(-sum(a.balance) filter (where a.balance < 0), 0), max(a.scale)) as debits,
    audit.decimal(coalesce(sum(a.balance) filter (where a.balance > 0), 0), max(a.scale)) as credits,
    audit.decimal(sum(a.balance), max(a.scale)) as difference,
    audit.decimal(sum(a.held), max(a.scale)) as held
from ledger_accounts a
left join access_tenants t on t.tenant_id = a.tenant_id
group by a.tenant_id, t.name, a.asset;
comment on view audit.trial_balance is 'Sums of the positive and of the negative balances, by asset. The difference is always 0.';
comment on column audit.trial_balance.tenant is 'Name of the tenant.';
comment on column audit.trial_balance.asset is 'Asset.';
comment on column audit.trial_balance.accounts is 'How many accounts.';
comment on column audit.trial_balance.debits is 'Sum of the balances below zero, as a positive amount.';
comment on column audit.trial_balance.credits is 'Sum of the balances above zero.';
comment on column audit.trial_balance.difference is 'Credits minus debits: always 0.';
comment on column audit.trial_balance.held is 'Sum of the open holds.';

create view audit.unbalanced_transfers as
select t.name as tenant, j.biz_no, e.asset, audit.decimal(e.off, coalesce(s.scale, 0)) as off, j.recorded_at, j.request_id, e.transfer_id
from (
    select tenant_id, transfer_id, asset, sum(amount) as off
    from ledger_entries group by tenant_id, transfer_id, asset having sum(amount) <> 0
) e
left join ledger_transfers j on j.tenant_id = e.tenant_id and j.transfer_id = e.transfer_id
left join ledger_assets s on s.tenant_id = e.tenant_id and s.code = e.asset
left join access_tenants t on t.tenant_id = e.tenant_id;
comment on view audit.unbalanced_transfers is 'Transfers whose entries do not sum to zero in an asset: always none. Reads all entries.';
comment on column audit.unbalanced_transfers.tenant is 'Name of the tenant.';
comment on column audit.unbalanced_transfers.biz_no is 'The caller''s business number; null: the transfer is missing.';
comment on column audit.unbalanced_transfers.asset is 'Asset that does not balance.';
comment on column audit.unbalanced_transfers.off is 'Sum of the entries.';
comment on column audit.unbalanced_transfers.recorded_at is 'When the transfer was recorded.';
comment on column audit.unbalanced_transfers.request_id is 'X-Request-ID of the call.';
comment on column audit.unbalanced_transfers.transfer_id is 'Id in ledger_transfers.';

create view audit.drifted_accounts as
select t.name as tenant, a.code as account, a.asset,
    audit.decimal(a.balance, a.scale) as balance, audit.decimal(e.balance, a.scale) as entries_balance,
    a.version as entries, e.entries as entries_found, a.account_id
from ledger_accounts a
cross join lateral (
    select coalesce(sum(l.amount), 0) as balance, count(*) as entries
    from ledger_entries l where l.tenant_id = a.tenant_id and l.account_id = a.account_id
) e
left join access_tenants t on t.tenant_id = a.tenant_id
where a.balance <> e.balance or a.version <> e.entries;
comment on view audit.drifted_accounts is 'Accounts whose balance is not the sum of their entries: always none. Reads all entries.';
comment on column audit.drifted_accounts.tenant is 'Name of the tenant.';
comment on column audit.drifted_accounts.account is 'Code of the account.';
comment on column audit.drifted_accounts.asset is 'Asset.';
comment on column audit.drifted_accounts.balance is 'Balance as stored.';
comment on column audit.drifted_accounts.entries_balance is 'Sum of the entries.';
comment on column audit.drifted_accounts.entries is 'Number of entries according to the account.';
comment on column audit.drifted_accounts.entries_found is 'Number of entries found.';
comment on column audit.drifted_accounts.account_id is 'Id in ledger_accounts.';

create view audit.open_holds as
select t.name as tenant, h.biz_no, a.code as account, a.asset, h.to_code as to_account,
    audit.decimal(h.amount, a.scale) as amount, audit.decimal(h.captured, a.scale) as captured,
    audit.decimal(h.amount - h.captured, a.scale) as remaining,
    h.created_at, h.expires_at, h.expires_at <= now() as due, h.principal, h.request_id, h.metadata, h.hold_id
from ledger_holds h
left join ledger_accounts a on a.tenant_id = h.tenant_id and a.account_id = h.account_id
left join access_tenants t on t.tenant_id = h.tenant_id
where h.state = 'held';
comment on view audit.open_holds is 'Open holds.';
comment on column audit.open_holds.tenant is 'Name of the tenant.';
comment on column audit.open_holds.biz_no is 'The caller''s business number.';
comment on column audit.open_holds.account is 'Code of the account whose money is held.';
comment on column audit.open_holds.asset is 'Asset.';
comment on column audit.open_holds.to_account is 'Account code that a capture pays by default; may be empty.';
comment on column audit.open_holds.amount is 'Amount held at first.';
comment on column audit.open_holds.captured is 'Sum of the captures so far.';
comment on column audit.open_holds.remaining is 'Amount that is left.';
comment on column audit.open_holds.created_at is 'When it was created.';
comment on column audit.open_holds.expires_at is 'When it expires.';
comment on column audit.open_holds.due is 'True if it has expired, and will be closed when the account is next used, or by the background task.';
comment on column audit.open_holds.principal is 'Principal of the caller.';
comment on column audit.open_holds.request_id is 'X-Request-ID of the call that created it.';
comment on column audit.open_holds.metadata is 'Metadata of the caller: names and values.';
comment on column audit.open_holds.hold_id is 'Id in ledger_holds.';

-- Without a condition on recorded_at the planner would take ledger_transfers_request_idx for useless.
create view audit.requests as
select t.name as tenant, r.request_id, r.at, r.what, r.name, r.detail, r.principal, r.id
from (
    select tenant_id, request_id, recorded_at as at, 'transfer'::text as what, biz_no as name, type as detail, principal, transfer_id as id
    from ledger_transfers where recorded_at > '-infinity'
    union all
    select tenant_id, request_id, created_at, 'hold', biz_no, state, principal, hold_id from ledger_holds
    union all
    select d.tenant_id, d.request_id, d.created_at, 'account', a.code, a.asset, null, d.account_id
    from ledger_account_details d
    left join ledger_accounts a on a.tenant_id = d.tenant_id and a.account_id = d.account_id
    union all
    select tenant_id, request_id, created_at, case when refused then 'refusal' else 'key' end, key, operation, principal, null from commit_keys
) r
left join access_tenants t on t.tenant_id = r.tenant_id;
comment on view audit.requests is 'Rows that a call created, by its X-Request-ID. Transfers are found by an index; holds, accounts and keys are scanned, unless the query says what = ''transfer''.';
comment on column audit.requests.tenant is 'Name of the tenant.';
comment on column audit.requests.request_id is 'X-Request-ID of the call.';
comment on column audit.requests.at is 'When it was recorded.';
comment on column audit.requests.what is 'transfer, hold, account, key, or refusal (a key whose answer is a refusal).';
comment on column audit.requests.name is 'biz_no, account code, or request key.';
comment on column audit.requests.detail is 'Type of the transfer, state of the hold, asset of the account, operation of the key.';
comment on column audit.requests.principal is 'Principal of the caller; null for accounts, which do not record it.';
comment on column audit.requests.id is 'Id of the row; id >> 14 is its batch. Keys have none.';

create view audit.request_keys as
select t.name as tenant, k.principal, k.operation, k.key, k.refused,
    case when k.refused then convert_from(k.answer, 'UTF8')::jsonb ->> 'reason' end as reason,
    k.request_id, k.created_at, k.expires_at, k.expires_at <= now() as expired, octet_length(k.answer) as answer_bytes
from commit_keys k
left join access_tenants t on t.tenant_id = k.tenant_id;
comment on view audit.request_keys is 'Request keys, without their answers. Replays write nothing: metrics and the log count them.';
comment on column audit.request_keys.tenant is 'Name of the tenant.';
comment on column audit.request_keys.principal is 'Principal of the caller.';
comment on column audit.request_keys.operation is 'Operation that was called, such as ledger.transfer.';
comment on column audit.request_keys.key is 'The Idempotency-Key.';
comment on column audit.request_keys.refused is 'True if the answer is a business refusal.';
comment on column audit.request_keys.reason is 'Reason of the refusal.';
comment on column audit.request_keys.request_id is 'X-Request-ID of the call that ran.';
comment on column audit.request_keys.created_at is 'When the call ran.';
comment on column audit.request_keys.expires_at is 'When it expires.';
comment on column audit.request_keys.expired is 'True if it has expired and counts as deleted.';
comment on column audit.request_keys.answer_bytes is 'Size of the recorded answer.';

create view audit.request_key_usage as
select t.name as tenant, k.operation, count(*) as keys,
    count(*) filter (where k.refused) as refused,
    count(*) filter (where k.expires_at <= now()) as expired,
    sum(octet_length(k.answer)) as answer_bytes, min(k.created_at) as oldest_at, max(k.created_at) as newest_at
from commit_keys k
left join access_tenants t on t.tenant_id = k.tenant_id
group by k.tenant_id, t.name, k.operation;
comment on view audit.request_key_usage is 'Request keys counted by operation.';
comment on column audit.request_key_usage.tenant is 'Name of the tenant.';
comment on column audit.request_key_usage.operation is 'Operation that was called.';
comment on column audit.request_key_usage.keys is 'How many keys are recorded.';
comment on column audit.request_key_usage.refused is 'Number of them whose answer is a refusal.';
comment on column audit.request_key_usage.expired is 'Number of them that have expired and are not deleted yet.';
comment on column audit.request_key_usage.answer_bytes is 'Total size of their answers.';
comment on column audit.request_key_usage.oldest_at is 'When the call of the oldest ran.';
comment on column audit.request_key_usage.newest_at is 'When the call of the newest ran.';

create view audit.batches as
select b.batch_id, b.committed_at, b.commands, b.commands = 0 as void, b.instance, b.xid
from commit_batches b;
comment on view audit.batches is 'Batches that the service committed. id >> 14 of a row is its batch.';
comment on column audit.batches.batch_id is 'Number of the batch.';
comment on column audit.batches.committed_at is 'Time of the batch, and recorded_at of its rows.';
comment on column audit.batches.commands is 'Number of its commands.';
comment on column audit.batches.void is 'True for a batch without rows, written to settle a COMMIT that did not take place, or to test whether commits are durable.';
comment on column audit.batches.instance is 'Process that ran it.';
comment on column audit.batches.xid is 'Transaction id.';

grant usage on schema audit to ledgerd_audit;
grant select on all tables in schema audit to ledgerd_audit;
reset role;

-- +goose Down
drop schema audit cascade;
