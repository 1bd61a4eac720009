-- The baseline: a ledger written by hand in Postgres alone. Its tables are those of the service, with the same types,
-- keys, indexes, CHECKs and fill factor, and without what only the service needs (principal, request id, metadata,
-- request keys, batches, columns for holds). The names are the same too, so that the same verification runs on both.
-- Indexes are created after the rows.
create schema bench;
set search_path to bench;

create sequence ledger_transfer_seq as bigint cache 1000;

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
    constraint ledger_accounts_code_check check (octet_length(code) between 1 and 256),
    constraint ledger_accounts_kind_check check (kind in ('asset', 'liability', 'equity', 'income', 'expense')),
    constraint ledger_accounts_state_check check (state in ('open', 'frozen', 'closed')),
    constraint ledger_accounts_held_check check (held >= 0),
    constraint ledger_accounts_min_balance_check check (balance - held >= min_balance),
    constraint ledger_accounts_max_balance_check check (balance <= max_balance),
    constraint ledger_accounts_closed_check check (state <> 'closed' or (balance = 0 and held = 0)),
    constraint ledger_accounts_version_check check (version >= 0)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);

create table ledger_transfers (
    tenant_id    integer not null,
    transfer_id  bigint not null default nextval('bench.ledger_transfer_seq'),
    biz_no       text collate "C" not null,
    type         text collate "C" not null,
    recorded_at  timestamptz not null,
    effective_at timestamptz,
    constraint ledger_transfers_biz_no_check check (octet_length(biz_no) between 1 and 128),
    constraint ledger_transfers_type_check check (octet_length(type) between 1 and 64)
);

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
    constraint ledger_entries_amount_check check (amount <> 0),
    constraint ledger_entries_sum_check check (balance_before + amount = balance_after),
    constraint ledger_entries_version_check check (version >= 1)
);

-- The same initial journal as the service's.
insert into ledger_accounts select tenant_id, account_id, code, asset, scale, kind, state, balance, held,
    min_balance, max_balance, version, last_entry_at from public.ledger_accounts;
insert into ledger_transfers select tenant_id, transfer_id, biz_no, type, recorded_at, effective_at
    from public.ledger_transfers;
insert into ledger_entries select tenant_id, account_id, version, transfer_id, recorded_at, effective_at, posting,
    asset, amount, balance_before, balance_after from public.ledger_entries;
select setval('ledger_transfer_seq', max(transfer_id)) from ledger_transfers;

alter table ledger_accounts add constraint ledger_accounts_pkey primary key (tenant_id, account_id);
alter table ledger_accounts add constraint ledger_accounts_code_key unique (tenant_id, code, asset);
alter table ledger_transfers add constraint ledger_transfers_pkey primary key (tenant_id, transfer_id);
alter table ledger_transfers add constraint ledger_transfers_biz_no_key unique (tenant_id, biz_no);
alter table ledger_entries add constraint ledger_entries_pkey primary key (tenant_id, account_id, version);
create index ledger_entries_transfer_idx on ledger_entries (tenant_id, transfer_id);
create index ledger_entries_effective_idx on ledger_entries (tenant_id, account_id, effective_at)
    where effective_at is not null;

-- The service's trigger against entries that do not sum to zero. It costs about as much for one transfer as for a batch
-- of a thousand. So the baseline is measured without the trigger, which is harder to beat, and in one case with it.
create function ledger_entries_balance() returns trigger language plpgsql as $$
declare
    bad record;
begin
    select tenant_id, transfer_id, asset, sum(amount) as off into bad
    from fresh group by tenant_id, transfer_id, asset having sum(amount) <> 0 limit 1;
    if found then
        raise exception 'transfer % is off by %', bad.transfer_id, bad.off;
    end if;
    return null;
end
$$;
create trigger ledger_entries_balance after insert on ledger_entries
    referencing new table as fresh for each statement execute function ledger_entries_balance();
alter table ledger_entries disable trigger ledger_entries_balance;

-- One transfer, one call, one transaction. Locks in the order of codes, so that no two deadlock.
create function transfer(tenant integer, biz text, from_code text, to_code text, moved numeric) returns bigint
    language plpgsql
    set search_path = bench, pg_catalog
    as $$
declare
    -- Scalars, not rows, and only the columns that are needed, so that the function is as fast as possible.
    payer bigint;
    payer_balance numeric;
    payer_free numeric;
    payer_version bigint;
    payer_state text;
    payee bigint;
    payee_balance numeric;
    payee_version bigint;
    payee_state text;
    id bigint;
    at timestamptz;
begin
    if from_code < to_code then
        select account_id, balance, balance - held - min_balance, version, state
        into strict payer, payer_balance, payer_free, payer_version, payer_state
        from ledger_accounts where tenant_id = tenant and code = from_code and asset = 'CNY' for update;
    end if;
    select account_id, balance, version, state into strict payee, payee_balance, payee_version, payee_state
    from ledger_accounts where tenant_id = tenant and code = to_code and asset = 'CNY' for update;
    if from_code > to_code then
        select account_id, balance, balance - held - min_balance, version, state
        into strict payer, payer_balance, payer_free, payer_version, payer_state
        from ledger_accounts where tenant_id = tenant and code = from_code and asset = 'CNY' for update;
    end if;
    at := clock_timestamp(); -- behind the locks, so that time never falls within an account
    if payer_state <> 'open' or payee_state = 'closed' then
        raise exception 'an account is not open';
    end if;
    if payer_free < moved then
        raise exception 'insufficient funds';
    end if;
    insert into ledger_transfers (tenant_id, biz_no, type, recorded_at) values (tenant, biz, 'transfer', at)
    returning transfer_id into id;
    insert into ledger_entries (tenant_id, account_id, version, transfer_id, recorded_at, posting, asset, amount,
        balance_before, balance_after)
    values (tenant, payer, payer_version + 1, id, at, 0, 'CNY', -moved, payer_balance, payer_balance - moved),
        (tenant, payee, payee_version + 1, id, at, 0, 'CNY', moved, payee_balance, payee_balance + moved);
    update ledger_accounts set balance = payer_balance - moved, version = payer_version + 1, last_entry_at = at
    where tenant_id = tenant and account_id = payer;
    update ledger_accounts set balance = payee_balance + moved, version = payee_version + 1, last_entry_at = at
    where tenant_id = tenant and account_id = payee;
    return id;
end
$$;
