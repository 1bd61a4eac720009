-- The ledger: assets, accounts, transfers with their entries, holds. Locks nothing.

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
    next_lapse_at timestamptz,
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
comment on table ledger_accounts is 'Accounts with their balances. These are the hot rows: narrow, and without an index on columns that change. Amounts are in minor units.';
comment on column ledger_accounts.tenant_id is 'Tenant.';
comment on column ledger_accounts.account_id is 'Id; id >> 14 is the batch that made it.';
comment on column ledger_accounts.code is 'Path, such as user:1001:wallet.';
comment on column ledger_accounts.asset is 'Asset; code and asset together name the account.';
comment on column ledger_accounts.scale is 'Scale of the asset, repeated here so that a command needs only the locked row.';
comment on column ledger_accounts.kind is 'asset, liability, equity, income or expense, for reports. Changes no rule.';
comment on column ledger_accounts.state is 'open; frozen: can only be credited; closed: can be neither debited nor credited.';
comment on column ledger_accounts.balance is 'Credits minus debits.';
comment on column ledger_accounts.held is 'Sum of what is left of its open holds.';
comment on column ledger_accounts.min_balance is 'Lower limit: balance - held must not fall below it. Null: no limit.';
comment on column ledger_accounts.max_balance is 'Upper limit of the balance. Null: no limit.';
comment on column ledger_accounts.version is 'Version of its newest entry.';
comment on column ledger_accounts.last_entry_at is 'Time of its newest entry.';
comment on column ledger_accounts.next_lapse_at is 'No open hold of the account expires before this time; null: it has no open hold.';

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
create unique index ledger_transfers_reverses_key on ledger_transfers (tenant_id, reverses_id) where reverses_id is not null;
create index ledger_transfers_hold_idx on ledger_transfers (tenant_id, hold_id) where hold_id is not null;
create index ledger_transfers_request_idx on ledger_transfers
    using brin (recorded_at, request_id text_bloom_ops (n_distinct_per_range = 4000, false_positive_rate = 0.001))
    with (pages_per_range = 64);
-- A new index has a summary of its first range, which holds nothing yet: every row of it would rewrite that.
select brin_desummarize_range('ledger_transfers_request_idx', 0);
comment on index ledger_transfers_request_idx is 'BRIN index, 2 bytes a row, to find transfers by request id or time. Vacuum summarizes full ranges, hence the table''s threshold; newer pages are scanned. The planner uses it only when the query limits recorded_at, since request ids are in no order. ADR 8.';
comment on table ledger_transfers is 'Journal: one row per transfer. Append-only.';
comment on column ledger_transfers.tenant_id is 'Tenant.';
comment on column ledger_transfers.transfer_id is 'Id; id >> 14 is the batch that committed it.';
comment on column ledger_transfers.biz_no is 'The caller''s business number. Unique for ever.';
comment on column ledger_transfers.type is 'transfer, capture, reversal, or a type of the caller''s.';
comment on column ledger_transfers.recorded_at is 'Time of the batch, by the database''s clock.';
comment on column ledger_transfers.effective_at is 'When it happened according to the caller; null: the same as recorded_at.';
comment on column ledger_transfers.reverses_id is 'Transfer that this one reverses.';
comment on column ledger_transfers.hold_id is 'Hold that this one captured from.';
comment on column ledger_transfers.forms is 'Amounts as requested, one per posting, separated by semicolons, if any was not exact: exact;up_to:10.5;all_available. For a capture: all_held if it named no amount, release_rest if it released the rest.';
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
create index ledger_entries_effective_idx on ledger_entries (tenant_id, account_id, effective_at) where effective_at is not null;
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
comment on table ledger_holds is 'Holds: amounts of an account that are reserved. Guarded by the row lock of the account.';
comment on column ledger_holds.tenant_id is 'Tenant.';
comment on column ledger_holds.hold_id is 'Id; id >> 14 is the batch that made it.';
comment on column ledger_holds.biz_no is 'The caller''s business number. Unique for ever.';
comment on column ledger_holds.account_id is 'Account whose money is held. Never changes.';
comment on column ledger_holds.to_code is 'Account code that a capture pays by default; may be empty.';
comment on column ledger_holds.form is 'Amount as requested, if it was not exact: up_to:10.5, all_available.';
comment on column ledger_holds.amount is 'Amount held at first, in minor units.';
comment on column ledger_holds.captured is 'Sum of the captures so far.';
comment on column ledger_holds.state is 'held while it is open; then captured (the rest may have been released), released or expired.';
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
        raise exception 'transfer % of tenant % is off by % % minor units', bad.transfer_id, bad.tenant_id, bad.off, bad.asset
            using errcode = 'LD003';
    end if;
    return null;
end
$$;
-- +goose StatementEnd
comment on function ledger_entries_balance is 'Trigger function: checks that the entries of a transfer, which are inserted in one statement, sum to zero in every asset.';

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
comment on function ledger_version_at is 'Version of an account''s last entry recorded at or before a time; 0 for none. Bisects versions, so that no index on time is needed.';

grant select, insert on ledger_assets, ledger_accounts, ledger_account_details, ledger_transfers, ledger_entries, ledger_holds to ledgerd_app;
grant update (state, balance, held, min_balance, max_balance, version, last_entry_at, next_lapse_at) on ledger_accounts to ledgerd_app;
grant update (metadata) on ledger_account_details to ledgerd_app;
grant update (captured, state, closed_at) on ledger_holds to ledgerd_app;
grant select on ledger_assets, ledger_accounts, ledger_account_details, ledger_transfers, ledger_entries, ledger_holds to ledgerd_audit;
reset role;

-- +goose Down
drop table ledger_holds;
drop table ledger_entries;
drop table ledger_transfers;
drop table ledger_account_details;
drop table ledger_accounts;
drop table ledger_assets;
drop function ledger_entries_balance;
drop function ledger_version_at;
