-- The ledger: assets, accounts, transfers with their entries, holds, and the views of them. Locks nothing.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
set local role ledgerd_owner;

create table ledger_assets (
    tenant_id  integer not null,
    code       text collate "C" not null,
    scale      smallint not null,
    created_at timestamptz not null,
    constraint ledger_assets_pkey primary key (tenant_id, code),
    constraint ledger_assets_scale_check check (scale between 0 and 18),
    constraint ledger_assets_code_check check (octet_length(code) between 1 and 32)
);
comment on table ledger_assets is 'Assets: the units that amounts are counted in. Rows never change.';
comment on column ledger_assets.tenant_id is 'Tenant.';
comment on column ledger_assets.code is 'Code, such as CNY.';
comment on column ledger_assets.scale is 'Number of decimals of an amount.';
comment on column ledger_assets.created_at is 'When it was created.';

create table ledger_accounts (
    tenant_id     integer not null,
    account_id    bigint not null,
    code          text collate "C" not null,
    asset         text collate "C" not null,
    scale         smallint not null,
    kind          text collate "C" not null,
    state         text collate "C" not null default 'open',
    balance       numeric(38, 0) not null default 0,
    held          numeric(38, 0) not null default 0,
    min_balance   numeric(38, 0),
    max_balance   numeric(38, 0),
    version       bigint not null default 0,
    last_entry_at timestamptz,
    next_expiry_at timestamptz,
    constraint ledger_accounts_pkey primary key (tenant_id, account_id),
    constraint ledger_accounts_code_key unique (tenant_id, code, asset),
    constraint ledger_accounts_code_check check (octet_length(code) between 1 and 256),
    constraint ledger_accounts_kind_check check (kind in ('asset', 'liability', 'equity', 'income', 'expense')),
    constraint ledger_accounts_state_check check (state in ('open', 'frozen', 'closed')),
    constraint ledger_accounts_held_check check (held >= 0),
    constraint ledger_accounts_min_balance_check check (balance - held >= min_balance),
    constraint ledger_accounts_max_balance_check check (balance <= max_balance),
    constraint ledger_accounts_closed_check check (state <> 'closed' or (balance = 0 and held = 0)),
    constraint ledger_accounts_version_check check (version >= 0)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
comment on table ledger_accounts is
    'Accounts with their balances. These are the hot rows: narrow, and without an index on columns that change. '
    'Amounts are in minor units.';
comment on column ledger_accounts.tenant_id is 'Tenant.';
comment on column ledger_accounts.account_id is 'Id; id >> 14 is the batch that made it.';
comment on column ledger_accounts.code is 'Path, such as user:1001:wallet.';
comment on column ledger_accounts.asset is 'Asset; code and asset together name the account.';
comment on column ledger_accounts.scale is
    'Scale of the asset, repeated here so that a command needs only the locked row.';
comment on column ledger_accounts.kind is 'asset, liability, equity, income or expense, for reports. Changes no rule.';
comment on column ledger_accounts.state is
    'open; frozen: can only be credited; closed: can be neither debited nor credited.';
comment on column ledger_accounts.balance is 'Credits minus debits.';
comment on column ledger_accounts.held is 'Sum of the remaining amounts of its open holds.';
comment on column ledger_accounts.min_balance is 'Lower limit: balance - held must not fall below it. Null: no limit.';
comment on column ledger_accounts.max_balance is 'Upper limit of the balance. Null: no limit.';
comment on column ledger_accounts.version is 'Version of its newest entry.';
comment on column ledger_accounts.last_entry_at is 'Time of its newest entry.';
comment on column ledger_accounts.next_expiry_at is
    'No open hold of the account expires before this time; null: it has no open hold.';

create table ledger_account_details (
    tenant_id  integer not null,
    account_id bigint not null,
    metadata   jsonb not null default '{}',
    created_at timestamptz not null,
    request_id text collate "C" not null,
    constraint ledger_account_details_pkey primary key (tenant_id, account_id),
    constraint ledger_account_details_metadata_check check (octet_length(metadata::text) <= 131072)
);
comment on table ledger_account_details is 'Columns of accounts that are wide and seldom read.';
comment on column ledger_account_details.tenant_id is 'Tenant.';
comment on column ledger_account_details.account_id is 'Account.';
comment on column ledger_account_details.metadata is 'Metadata of the caller: names and values.';
comment on column ledger_account_details.created_at is 'When the account was made.';
comment on column ledger_account_details.request_id is 'X-Request-ID of the call that created it.';

create table ledger_transfers (
    tenant_id    integer not null,
    transfer_id  bigint not null,
    biz_no       text collate "C" not null,
    type         text collate "C" not null,
    recorded_at  timestamptz not null,
    effective_at timestamptz,
    reverses_id  bigint,
    hold_id      bigint,
    forms        text collate "C",
    metadata     jsonb,
    principal    text collate "C" not null,
    request_id   text collate "C" not null,
    constraint ledger_transfers_pkey primary key (tenant_id, transfer_id),
    constraint ledger_transfers_biz_no_key unique (tenant_id, biz_no),
    constraint ledger_transfers_biz_no_check check (octet_length(biz_no) between 1 and 128),
    constraint ledger_transfers_type_check check (octet_length(type) between 1 and 64),
    constraint ledger_transfers_metadata_check check (octet_length(metadata::text) <= 131072)
) with (autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000);
create unique index ledger_transfers_reverses_key on ledger_transfers (tenant_id, reverses_id)
    where reverses_id is not null;
create index ledger_transfers_hold_idx on ledger_transfers (tenant_id, hold_id) where hold_id is not null;
create index ledger_transfers_request_idx on ledger_transfers
    using brin (recorded_at, request_id text_bloom_ops (n_distinct_per_range = 4000, false_positive_rate = 0.001))
    with (pages_per_range = 64);
-- A new BRIN index has a summary of its first, empty range, which every row inserted there would rewrite: remove it.
select brin_desummarize_range('ledger_transfers_request_idx', 0);
comment on index ledger_transfers_request_idx is
    'BRIN index, 2 bytes a row, to find transfers by request id or time. Vacuum summarizes full ranges, hence the '
    'table''s threshold; newer pages are scanned. The planner uses it only when the query limits recorded_at, '
    'since request ids are in no order. ADR 8.';
comment on table ledger_transfers is 'Journal: one row per transfer. Append-only.';
comment on column ledger_transfers.tenant_id is 'Tenant.';
comment on column ledger_transfers.transfer_id is 'Id; id >> 14 is the batch that committed it.';
comment on column ledger_transfers.biz_no is
    'Business number: the caller''s, or that of the service, such as ORDER_NO/pay. Unique for ever.';
comment on column ledger_transfers.type is
    'transfer, capture, reversal; order, payment or refund for those of orders; or a type of the caller''s.';
comment on column ledger_transfers.recorded_at is 'Time of the batch, by the database''s clock.';
comment on column ledger_transfers.effective_at is
    'When it happened according to the caller; null: the same as recorded_at.';
comment on column ledger_transfers.reverses_id is 'Transfer that this one reverses.';
comment on column ledger_transfers.hold_id is 'Hold that this one captured from.';
comment on column ledger_transfers.forms is
    'Amounts as requested, one per posting, separated by semicolons, if any was not exact: '
    'exact;up_to:10.5;all_available. For a capture: all_held if it named no amount, release_rest if it released '
    'the rest.';
comment on column ledger_transfers.metadata is 'Metadata of the caller: names and values.';
comment on column ledger_transfers.principal is 'Principal of the caller.';
comment on column ledger_transfers.request_id is 'X-Request-ID of the call.';

create table ledger_entries (
    tenant_id      integer not null,
    account_id     bigint not null,
    version        bigint not null,
    transfer_id    bigint not null,
    recorded_at    timestamptz not null,
    effective_at   timestamptz,
    posting        smallint not null,
    asset          text collate "C" not null,
    amount         numeric(38, 0) not null,
    balance_before numeric(38, 0) not null,
    balance_after  numeric(38, 0) not null,
    constraint ledger_entries_pkey primary key (tenant_id, account_id, version),
    constraint ledger_entries_amount_check check (amount <> 0),
    constraint ledger_entries_sum_check check (balance_before + amount = balance_after),
    constraint ledger_entries_version_check check (version >= 1)
);
create index ledger_entries_transfer_idx on ledger_entries (tenant_id, transfer_id);
create index ledger_entries_effective_idx on ledger_entries (tenant_id, account_id, effective_at)
    where effective_at is not null;
comment on table ledger_entries is 'Journal: two rows per posting, a debit and a credit. Append-only.';
comment on column ledger_entries.tenant_id is 'Tenant.';
comment on column ledger_entries.account_id is 'Account.';
comment on column ledger_entries.version is 'Version of the account after this entry: 1, 2, 3, ... without gaps.';
comment on column ledger_entries.transfer_id is 'Transfer.';
comment on column ledger_entries.recorded_at is 'recorded_at of the transfer. Never decreases as version grows.';
comment on column ledger_entries.effective_at is 'effective_at of the transfer; null: the same as recorded_at.';
comment on column ledger_entries.posting is 'Index of its posting in the transfer, from 0.';
comment on column ledger_entries.asset is 'Asset of the account.';
comment on column ledger_entries.amount is 'In minor units: positive for a credit, negative for a debit.';
comment on column ledger_entries.balance_before is 'Balance of the account before it.';
comment on column ledger_entries.balance_after is 'Balance of the account after it.';

create table ledger_holds (
    tenant_id  integer not null,
    hold_id    bigint not null,
    biz_no     text collate "C" not null,
    account_id bigint not null,
    to_code    text collate "C" not null,
    form       text collate "C",
    amount     numeric(38, 0) not null,
    captured   numeric(38, 0) not null default 0,
    state      text collate "C" not null default 'held',
    life_ms    bigint not null,
    expires_at timestamptz not null,
    created_at timestamptz not null,
    closed_at  timestamptz,
    metadata   jsonb,
    principal  text collate "C" not null,
    request_id text collate "C" not null,
    constraint ledger_holds_pkey primary key (tenant_id, hold_id),
    constraint ledger_holds_biz_no_key unique (tenant_id, biz_no),
    constraint ledger_holds_biz_no_check check (octet_length(biz_no) between 1 and 128),
    constraint ledger_holds_amount_check check (amount > 0),
    constraint ledger_holds_life_ms_check check (life_ms > 0),
    constraint ledger_holds_captured_check check (captured between 0 and amount),
    constraint ledger_holds_state_check check (state in ('held', 'captured', 'released', 'expired')),
    constraint ledger_holds_closed_check check ((state = 'held') = (closed_at is null)),
    constraint ledger_holds_metadata_check check (octet_length(metadata::text) <= 131072)
);
create index ledger_holds_account_idx on ledger_holds (tenant_id, account_id, expires_at) where state = 'held';
create index ledger_holds_due_idx on ledger_holds (expires_at) where state = 'held';
comment on table ledger_holds is
    'Holds: amounts of an account that are reserved. Guarded by the row lock of the account.';
comment on column ledger_holds.tenant_id is 'Tenant.';
comment on column ledger_holds.hold_id is 'Id; id >> 14 is the batch that made it.';
comment on column ledger_holds.biz_no is 'The caller''s business number. Unique for ever.';
comment on column ledger_holds.account_id is 'Account whose money is held. Never changes.';
comment on column ledger_holds.to_code is 'Account code that a capture pays by default; may be empty.';
comment on column ledger_holds.form is 'Amount as requested, if it was not exact: up_to:10.5, all_available.';
comment on column ledger_holds.amount is 'Amount held at first, in minor units.';
comment on column ledger_holds.captured is 'Sum of the captures so far.';
comment on column ledger_holds.state is
    'held while it is open; then captured (the rest may have been released), released or expired.';
comment on column ledger_holds.life_ms is 'Requested life, in milliseconds.';
comment on column ledger_holds.expires_at is 'When it expires.';
comment on column ledger_holds.created_at is 'When it was created.';
comment on column ledger_holds.closed_at is 'When it was captured, released or expired.';
comment on column ledger_holds.metadata is 'Metadata of the caller: names and values.';
comment on column ledger_holds.principal is 'Principal of the caller.';
comment on column ledger_holds.request_id is 'X-Request-ID of the call.';

-- +goose StatementBegin
create function ledger_entries_balance() returns trigger
    language plpgsql
    set search_path from current
    as $$
declare
    bad record;
begin
    select tenant_id, transfer_id, asset, sum(amount) as off into bad
    from fresh group by tenant_id, transfer_id, asset having sum(amount) <> 0 limit 1;
    if found then
        raise exception 'transfer % of tenant % is off by % % minor units',
            bad.transfer_id, bad.tenant_id, bad.off, bad.asset
            using errcode = 'LD003';
    end if;
    return null;
end
$$;
-- +goose StatementEnd
comment on function ledger_entries_balance is
    'Trigger function: checks that the entries of a transfer, which are inserted in one statement, sum to zero in '
    'every asset.';

create trigger ledger_entries_balance after insert on ledger_entries
    referencing new table as fresh for each statement execute function ledger_entries_balance();
create trigger ledger_entries_append_only before update or delete or truncate on ledger_entries
    for each statement execute function commit_append_only();
create trigger ledger_transfers_append_only before update or delete or truncate on ledger_transfers
    for each statement execute function commit_append_only();

-- +goose StatementBegin
create function ledger_version_at(tenant integer, account bigint, at timestamptz) returns bigint
    language plpgsql
    stable
    set search_path from current
    as $$
declare
    low bigint := 0;
    high bigint;
    mid bigint;
    seen timestamptz;
begin
    select version into high from ledger_accounts a where a.tenant_id = tenant and a.account_id = account;
    while low < high loop
        mid := (low + high + 1) / 2;
        select recorded_at into strict seen from ledger_entries e
        where e.tenant_id = tenant and e.account_id = account and e.version = mid;
        if seen <= at then low := mid; else high := mid - 1; end if;
    end loop;
    return low;
end
$$;
-- +goose StatementEnd
comment on function ledger_version_at is
    'Version of an account''s last entry recorded at or before a time; 0 for none. Bisects versions, so that no '
    'index on time is needed.';

grant select, insert
    on ledger_assets, ledger_accounts, ledger_account_details, ledger_transfers, ledger_entries, ledger_holds
    to ledgerd_app;
grant update (state, balance, held, min_balance, max_balance, version, last_entry_at, next_expiry_at)
    on ledger_accounts to ledgerd_app;
grant update (metadata) on ledger_account_details to ledgerd_app;
grant update (captured, state, closed_at) on ledger_holds to ledgerd_app;
grant select
    on ledger_assets, ledger_accounts, ledger_account_details, ledger_transfers, ledger_entries, ledger_holds
    to ledgerd_audit;

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
comment on column audit.accounts.state is
    'open; frozen: can only be credited; closed: can be neither debited nor credited.';
comment on column audit.accounts.balance is 'Credits minus debits.';
comment on column audit.accounts.held is 'Sum of the remaining amounts of its open holds.';
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
comment on view audit.statement is
    'Entries with the running balance. Name the tenant, the account and the asset; order by entry.';
comment on column audit.statement.tenant is 'Name of the tenant.';
comment on column audit.statement.account is 'Code of the account.';
comment on column audit.statement.asset is 'Asset.';
comment on column audit.statement.entry is 'Position in the account: 1, 2, 3, ... without gaps.';
comment on column audit.statement.recorded_at is
    'When it was recorded, by the database''s clock. Never decreases with entry.';
comment on column audit.statement.effective_at is 'When it happened according to the caller, by default recorded_at.';
comment on column audit.statement.biz_no is 'Business number of the transfer.';
comment on column audit.statement.type is
    'transfer, capture, reversal; order, payment or refund for those of orders; or a type of the caller''s.';
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
left join ledger_entries c
    on c.tenant_id = j.tenant_id and c.transfer_id = j.transfer_id and c.posting = d.posting and c.amount > 0
left join ledger_accounts k on k.tenant_id = c.tenant_id and k.account_id = c.account_id
left join ledger_transfers r on r.tenant_id = j.tenant_id and r.transfer_id = j.reverses_id
left join ledger_holds h on h.tenant_id = j.tenant_id and h.hold_id = j.hold_id;
comment on view audit.postings is 'Transfers, one row per posting.';
comment on column audit.postings.tenant is 'Name of the tenant.';
comment on column audit.postings.biz_no is 'Business number of the transfer.';
comment on column audit.postings.type is
    'transfer, capture, reversal; order, payment or refund for those of orders; or a type of the caller''s.';
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
comment on view audit.trial_balance is
    'Sums of the positive and of the negative balances, by asset. The difference is always 0.';
comment on column audit.trial_balance.tenant is 'Name of the tenant.';
comment on column audit.trial_balance.asset is 'Asset.';
comment on column audit.trial_balance.accounts is 'How many accounts.';
comment on column audit.trial_balance.debits is 'Sum of the balances below zero, as a positive amount.';
comment on column audit.trial_balance.credits is 'Sum of the balances above zero.';
comment on column audit.trial_balance.difference is 'Credits minus debits: always 0.';
comment on column audit.trial_balance.held is 'Sum of the open holds.';

create view audit.unbalanced_transfers as
select t.name as tenant, j.biz_no, e.asset, audit.decimal(e.off, coalesce(s.scale, 0)) as off,
    j.recorded_at, j.request_id, e.transfer_id
from (
    select tenant_id, transfer_id, asset, sum(amount) as off
    from ledger_entries group by tenant_id, transfer_id, asset having sum(amount) <> 0
) e
left join ledger_transfers j on j.tenant_id = e.tenant_id and j.transfer_id = e.transfer_id
left join ledger_assets s on s.tenant_id = e.tenant_id and s.code = e.asset
left join access_tenants t on t.tenant_id = e.tenant_id;
comment on view audit.unbalanced_transfers is
    'Transfers whose entries do not sum to zero in an asset: always none. Reads all entries.';
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
comment on view audit.drifted_accounts is
    'Accounts whose balance is not the sum of their entries: always none. Reads all entries.';
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
comment on column audit.open_holds.due is
    'True if it has expired, and will be closed when the account is next used, or by the background task.';
comment on column audit.open_holds.principal is 'Principal of the caller.';
comment on column audit.open_holds.request_id is 'X-Request-ID of the call that created it.';
comment on column audit.open_holds.metadata is 'Metadata of the caller: names and values.';
comment on column audit.open_holds.hold_id is 'Id in ledger_holds.';

grant select on audit.accounts, audit.statement, audit.postings, audit.trial_balance, audit.unbalanced_transfers,
    audit.drifted_accounts, audit.open_holds to ledgerd_audit;
reset role;

-- +goose Down
drop view audit.open_holds;
drop view audit.drifted_accounts;
drop view audit.unbalanced_transfers;
drop view audit.trial_balance;
drop view audit.postings;
drop view audit.statement;
drop view audit.accounts;
drop table ledger_holds;
drop table ledger_entries;
drop table ledger_transfers;
drop table ledger_account_details;
drop table ledger_accounts;
drop table ledger_assets;
drop function ledger_entries_balance;
drop function ledger_version_at;
