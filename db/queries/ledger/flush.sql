-- Writes of the ledger in a batch: one statement for each table, sorted by key where callers choose the key. Arrays
-- except metadata have no nulls: the zero time, 0 and the empty text mean null in nullable columns. If all elements are
-- such values, the array itself may be null: unnest pads it with nulls.

-- name: AssetInsert :exec
insert into ledger_assets (tenant_id, code, scale, created_at)
select u.tenant_id, u.code, u.scale, @now::timestamptz
from (select unnest(@tenants::integer[]) as tenant_id, unnest(@codes::text[]) as code,
    unnest(@scales::smallint[]) as scale) u
order by u.tenant_id, u.code collate "C";

-- name: AccountInsert :exec
insert into ledger_accounts (tenant_id, account_id, code, asset, scale, kind, state, balance, held, min_balance,
    max_balance, version, last_entry_at, next_expiry_at)
select u.tenant_id, u.account_id, u.code, u.asset, u.scale, u.kind, u.state, u.balance, u.held,
    nullif(u.min_balance, '')::numeric, nullif(u.max_balance, '')::numeric, u.version,
    nullif(u.last_entry_at, '0001-01-01 00:00:00+00'), nullif(u.next_expiry_at, '0001-01-01 00:00:00+00')
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@account_ids::bigint[]) as account_id,
        unnest(@codes::text[]) as code, unnest(@assets::text[]) as asset, unnest(@scales::smallint[]) as scale,
        unnest(@kinds::text[]) as kind, unnest(@states::text[]) as state, unnest(@balances::numeric[]) as balance,
        unnest(@held::numeric[]) as held, unnest(@min_balances::text[]) as min_balance,
        unnest(@max_balances::text[]) as max_balance, unnest(@versions::bigint[]) as version,
        unnest(@last_entry_at::timestamptz[]) as last_entry_at, unnest(@next_expiry_at::timestamptz[]) as next_expiry_at
) u
order by u.tenant_id, u.code collate "C", u.asset collate "C";

-- name: AccountUpdate :exec
-- Updates accounts, in the order of the arrays; state and limits, which seldom change, only if states are passed.
-- Fails unless every row is still the version that the batch read. A row is found by ctid if that is known, which
-- saves an index lookup.
with updated as (
    update ledger_accounts a
    set balance = y.balance, held = y.held, version = y.version, state = coalesce(y.state, a.state),
        min_balance = case when y.state is null then a.min_balance else nullif(y.min_balance, '')::numeric end,
        max_balance = case when y.state is null then a.max_balance else nullif(y.max_balance, '')::numeric end,
        last_entry_at = nullif(y.last_entry_at, '0001-01-01 00:00:00+00'),
        next_expiry_at = nullif(y.next_expiry_at, '0001-01-01 00:00:00+00')
    from (
        select coalesce(u.tid, (
                select k.ctid from ledger_accounts k where k.tenant_id = u.tenant_id and k.account_id = u.account_id
            )) as tid, u.tenant_id, u.account_id, u.writer,
            u.state, u.balance, u.held, u.min_balance, u.max_balance, u.version, u.last_entry_at, u.next_expiry_at
        from (
            select unnest(@tenants::integer[]) as tenant_id, unnest(@account_ids::bigint[]) as account_id,
                unnest(@tids::tid[]) as tid, unnest(@writers::xid[]) as writer, unnest(@states::text[]) as state,
                unnest(@balances::numeric[]) as balance, unnest(@held::numeric[]) as held,
                unnest(@min_balances::text[]) as min_balance, unnest(@max_balances::text[]) as max_balance,
                unnest(@versions::bigint[]) as version, unnest(@last_entry_at::timestamptz[]) as last_entry_at,
                unnest(@next_expiry_at::timestamptz[]) as next_expiry_at
        ) u
        offset 0
    ) y
    where a.ctid = y.tid and a.xmin = y.writer and a.tenant_id = y.tenant_id and a.account_id = y.account_id
    returning 1
)
select commit_expect(count(*), cardinality(@account_ids::bigint[])) from updated;

-- name: AccountDetailInsert :exec
insert into ledger_account_details (tenant_id, account_id, metadata, created_at, request_id)
select u.tenant_id, u.account_id, u.metadata, @now::timestamptz, u.request_id
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@account_ids::bigint[]) as account_id,
        unnest(@metadata::jsonb[]) as metadata, unnest(@request_ids::text[]) as request_id
) u;

-- name: AccountDetailUpdate :exec
with updated as (
    update ledger_account_details d set metadata = u.metadata
    from (
        select unnest(@tenants::integer[]) as tenant_id, unnest(@account_ids::bigint[]) as account_id,
            unnest(@metadata::jsonb[]) as metadata
    ) u
    where d.tenant_id = u.tenant_id and d.account_id = u.account_id
    returning 1
)
select commit_expect(count(*), cardinality(@account_ids::bigint[])) from updated;

-- name: TransferInsert :exec
insert into ledger_transfers (tenant_id, transfer_id, biz_no, type, recorded_at, effective_at, reverses_id, hold_id,
    forms, metadata, principal, request_id)
select u.tenant_id, u.transfer_id, u.biz_no, u.type, @now::timestamptz,
    nullif(u.effective_at, '0001-01-01 00:00:00+00'), nullif(u.reverses_id, 0), nullif(u.hold_id, 0),
    nullif(u.forms, ''), u.metadata, u.principal, u.request_id
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@transfer_ids::bigint[]) as transfer_id,
        unnest(@biz_nos::text[]) as biz_no, unnest(@types::text[]) as type,
        unnest(@effective_at::timestamptz[]) as effective_at, unnest(@reverses_ids::bigint[]) as reverses_id,
        unnest(@hold_ids::bigint[]) as hold_id, unnest(@forms::text[]) as forms, unnest(@metadata::jsonb[]) as metadata,
        unnest(@principals::text[]) as principal, unnest(@request_ids::text[]) as request_id
) u
order by u.tenant_id, u.biz_no collate "C";

-- name: EntryInsert :exec
insert into ledger_entries (tenant_id, account_id, version, transfer_id, recorded_at, effective_at, posting, asset,
    amount, balance_before, balance_after)
select u.tenant_id, u.account_id, u.version, u.transfer_id, @now::timestamptz,
    nullif(u.effective_at, '0001-01-01 00:00:00+00'), u.posting, u.asset, u.amount, u.balance_before, u.balance_after
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@account_ids::bigint[]) as account_id,
        unnest(@versions::bigint[]) as version, unnest(@transfer_ids::bigint[]) as transfer_id,
        unnest(@effective_at::timestamptz[]) as effective_at, unnest(@postings::smallint[]) as posting,
        unnest(@assets::text[]) as asset, unnest(@amounts::numeric[]) as amount,
        unnest(@balances_before::numeric[]) as balance_before, unnest(@balances_after::numeric[]) as balance_after
) u
order by u.tenant_id, u.account_id, u.version; -- two servers may insert the same versions

-- name: HoldInsert :exec
insert into ledger_holds (tenant_id, hold_id, biz_no, account_id, to_code, form, amount, captured, state, life_ms,
    expires_at, created_at, closed_at, metadata, principal, request_id)
select u.tenant_id, u.hold_id, u.biz_no, u.account_id, u.to_code, nullif(u.form, ''), u.amount, u.captured,
    u.state, u.life_ms, u.expires_at, @now::timestamptz, nullif(u.closed_at, '0001-01-01 00:00:00+00'), u.metadata,
    u.principal, u.request_id
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@hold_ids::bigint[]) as hold_id,
        unnest(@biz_nos::text[]) as biz_no, unnest(@account_ids::bigint[]) as account_id,
        unnest(@to_codes::text[]) as to_code, unnest(@forms::text[]) as form, unnest(@amounts::numeric[]) as amount,
        unnest(@captured::numeric[]) as captured, unnest(@states::text[]) as state,
        unnest(@life_ms::bigint[]) as life_ms, unnest(@expires_at::timestamptz[]) as expires_at,
        unnest(@closed_at::timestamptz[]) as closed_at, unnest(@metadata::jsonb[]) as metadata,
        unnest(@principals::text[]) as principal, unnest(@request_ids::text[]) as request_id
) u
order by u.tenant_id, u.biz_no collate "C";

-- name: HoldUpdate :exec
-- Updates holds. Fails unless all are there and still held: their accounts are locked. Names them by id and by biz_no:
-- with one of them, a plan made on an empty table could use the index of the other, and read all holds of the tenant.
with updated as (
    update ledger_holds h
    set captured = y.captured, state = y.state, closed_at = nullif(y.closed_at, '0001-01-01 00:00:00+00')
    from (
        select l.ctid as tid, u.captured, u.state, u.closed_at
        from (
            select unnest(@tenants::integer[]) as tenant_id, unnest(@hold_ids::bigint[]) as hold_id,
                unnest(@biz_nos::text[]) as biz_no, unnest(@captured::numeric[]) as captured,
                unnest(@states::text[]) as state, unnest(@closed_at::timestamptz[]) as closed_at
        ) u
        cross join lateral (
            select k.ctid from ledger_holds k
            where k.tenant_id = u.tenant_id and k.hold_id = u.hold_id and k.biz_no = u.biz_no offset 0
        ) l
    ) y
    where h.ctid = y.tid and h.state = 'held'
    returning 1
)
select commit_expect(count(*), cardinality(@hold_ids::bigint[])) from updated;
