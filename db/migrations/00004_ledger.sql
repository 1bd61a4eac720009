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
comment on table ledger_assets is 'What amounts are counted in. Never changes.';
comment on column ledger_assets.tenant_id is 'Tenant.';
comment on column ledger_assets.code is 'Code, such as CNY.';
comment on column ledger_assets.scale is 'Decimals of the minor unit.';
comment on column ledger_assets.created_at is 'When it was made.';

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
comment on table ledger_accounts is 'Accounts with their balances: the hot rows, narrow, no index on what changes. Amounts are in minor units.';
comment on column ledger_accounts.tenant_id is 'Tenant.';
comment on column ledger_accounts.account_id is 'Id; id >> 14 is the batch that made it.';
comment on column ledger_accounts.code is 'Path, such as user:1001:wallet.';
comment on column ledger_accounts.asset is 'Asset; code and asset together name the account.';
comment on column ledger_accounts.scale is 'Decimals of the asset, repeated here so that a locked row can be worked with alone.';
comment on column ledger_accounts.kind is 'Accountant''s kind; changes no rule.';
comment on column ledger_accounts.state is 'open; frozen: nothing goes out; closed: nothing moves.';
comment on column ledger_accounts.balance is 'Credits minus debits.';
comment on column ledger_accounts.held is 'What its open holds still keep.';
comment on column ledger_accounts.min_balance is 'Least balance that held and debits must leave; null: any depth.';
comment on column ledger_accounts.max_balance is 'Greatest balance that credits may reach; null: no limit.';
comment on column ledger_accounts.version is 'Version of its newest entry.';
comment on column ledger_accounts.last_entry_at is 'Time of its newest entry.';
comment on column ledger_accounts.next_lapse_at is 'No open hold of it lapses before this time; null: it has none.';

create table ledger_account_details (
    tenant_id  integer not null,
    account_id bigint not null,
    metadata   jsonb not null default '{}',
    created_at timestamptz not null,
    request_id text collate "C" not null,
    constraint ledger_account_details_pkey primary key (tenant_id, account_id),
    constraint ledger_account_details_metadata_check check (octet_length(metadata::text) <= 131072)
);
comment on table ledger_account_details is 'What of an account is wide and seldom wanted.';
comment on column ledger_account_details.tenant_id is 'Tenant.';
comment on column ledger_account_details.account_id is 'Account.';
comment on column ledger_account_details.metadata is 'The user''s own names and values.';
comment on column ledger_account_details.created_at is 'When the account was made.';
comment on column ledger_account_details.request_id is 'X-Request-ID of the call that made it.';

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
comment on index ledger_transfers_request_idx is 'What a request did, and what happened between two times: 2 bytes a row. Vacuum summarizes ranges when they are full, hence the table''s threshold; what came since is read as it is. The planner takes it when recorded_at is asked for too, since ids come in no order. ADR 8.';
comment on table ledger_transfers is 'Journal: one row for every transfer that happened. Append-only.';
comment on column ledger_transfers.tenant_id is 'Tenant.';
comment on column ledger_transfers.transfer_id is 'Id; id >> 14 is the batch that committed it.';
comment on column ledger_transfers.biz_no is 'The business''s own number, for ever.';
comment on column ledger_transfers.type is 'transfer, capture, reversal, or the user''s own.';
comment on column ledger_transfers.recorded_at is 'Time of the batch, by the database''s clock.';
comment on column ledger_transfers.effective_at is 'When it happened as the caller said; null: he did not say, so recorded_at.';
comment on column ledger_transfers.reverses_id is 'The transfer that this one reverses.';
comment on column ledger_transfers.hold_id is 'The hold that this one captured from.';
comment on column ledger_transfers.forms is 'Amounts as asked for, one a posting between semicolons, when any was not exact: exact;up_to:10.5;all_available. Of a capture: all_held when it named no amount, release_rest when it gave the rest back.';
comment on column ledger_transfers.metadata is 'The user''s own names and values.';
comment on column ledger_transfers.principal is 'Who called.';
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
comment on table ledger_entries is 'Journal: two rows for every posting. Append-only.';
comment on column ledger_entries.tenant_id is 'Tenant.';
comment on column ledger_entries.account_id is 'Account.';
comment on column ledger_entries.version is 'Position in its account: 1, 2, 3, ... without gaps.';
comment on column ledger_entries.transfer_id is 'Transfer.';
comment on column ledger_entries.recorded_at is 'As the transfer''s; never falls as version grows.';
comment on column ledger_entries.effective_at is 'Only when it is not recorded_at.';
comment on column ledger_entries.posting is 'Index of its posting in the transfer, from 0.';
comment on column ledger_entries.asset is 'Asset of the account.';
comment on column ledger_entries.amount is 'Credit above zero, debit below; minor units.';
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
comment on table ledger_holds is 'Amounts kept from being spent. Guarded by the row lock of their account.';
comment on column ledger_holds.tenant_id is 'Tenant.';
comment on column ledger_holds.hold_id is 'Id; id >> 14 is the batch that made it.';
comment on column ledger_holds.biz_no is 'The business''s own number, for ever.';
comment on column ledger_holds.account_id is 'Account whose money is held. Never changes.';
comment on column ledger_holds.to_code is 'Account code that a capture pays by default; may be empty.';
comment on column ledger_holds.form is 'Amount as asked for when it was not exact: up_to:10.5, all_available.';
comment on column ledger_holds.amount is 'What was held at first, minor units.';
comment on column ledger_holds.captured is 'What captures took so far.';
comment on column ledger_holds.state is 'held, then, by what ended it, captured (the rest may have been given back), released or expired.';
comment on column ledger_holds.life_ms is 'Life as asked for, in milliseconds.';
comment on column ledger_holds.expires_at is 'It lapses at this time.';
comment on column ledger_holds.created_at is 'When it was made.';
comment on column ledger_holds.closed_at is 'When it stopped being held.';
comment on column ledger_holds.metadata is 'The user''s own names and values.';
comment on column ledger_holds.principal is 'Who called.';
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
comment on function ledger_entries_balance is 'Trigger: the entries of a transfer sum to zero in every asset. They come in one statement.';

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
comment on function ledger_version_at is 'Version of the last entry recorded at or before a time, 0 for none: bisection over versions, so that no index on time is needed.';

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
