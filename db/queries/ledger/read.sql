-- Reads of assets, accounts and balances. They run beside the engine, each on one snapshot, and are planned with
-- their actual values. A pattern of codes is passed as the range [low, high), which an index serves, and as a regular
-- expression for the rest; the empty one matches everything.

-- name: AssetList :many
-- All assets of a tenant.
select code, scale from ledger_assets where tenant_id = @tenant_id order by code;

-- name: AccountRead :one
-- An account with its metadata.
select a.account_id, a.code, a.asset, a.scale, a.kind, a.state, a.balance, a.held, a.min_balance, a.max_balance,
    a.version, a.last_entry_at, a.next_expiry_at, d.metadata, d.created_at
from ledger_accounts a
join ledger_account_details d on d.tenant_id = a.tenant_id and d.account_id = a.account_id
where a.tenant_id = @tenant_id::integer and a.code = @code::text and a.asset = @asset::text;

-- name: AccountPage :many
-- Accounts that match, after a code and asset, in their order. No second lower bound: the planner would start the
-- index scan at the wrong one.
select a.account_id, a.code, a.asset, a.scale, a.kind, a.state, a.balance, a.held, a.min_balance, a.max_balance,
    a.version, a.last_entry_at, a.next_expiry_at, d.metadata, d.created_at
from (
    select l.account_id, l.code, l.asset, l.scale, l.kind, l.state, l.balance, l.held, l.min_balance, l.max_balance,
        l.version, l.last_entry_at, l.next_expiry_at
    from ledger_accounts l
    where l.tenant_id = @tenant_id::integer and (l.code, l.asset) > (@after_code::text, @after_asset::text)
        and l.code < @high::text and l.code ~ @match::text
        and (@only_asset::text = '' or l.asset = @only_asset::text)
    order by l.code, l.asset
    limit @count::integer
) a
cross join lateral (
    select l.metadata, l.created_at from ledger_account_details l
    where l.tenant_id = @tenant_id::integer and l.account_id = a.account_id offset 0
) d
order by a.code, a.asset;

-- name: BalanceRead :one
-- An account's present balance.
select account_id, scale, balance, held, min_balance, version
from ledger_accounts where tenant_id = @tenant_id::integer and code = @code::text and asset = @asset::text;

-- name: BalanceReadAtRecord :one
-- The recorded balance at a time. It is final once there is an entry after that time, because times never decrease
-- within an account.
select a.scale, v.version::bigint as version, coalesce(e.balance_after, 0)::numeric as balance,
    coalesce(a.last_entry_at > @at::timestamptz, false)::boolean as final,
    (@at::timestamptz >= clock_timestamp())::boolean as future
from ledger_accounts a
cross join lateral (select ledger_version_at(a.tenant_id, a.account_id, @at::timestamptz) as version offset 0) v
left join lateral (
    select l.balance_after from ledger_entries l
    where l.tenant_id = a.tenant_id and l.account_id = a.account_id and l.version = v.version offset 0
) e on true
where a.tenant_id = @tenant_id::integer and a.code = @code::text and a.asset = @asset::text;

-- name: BalanceReadAtEffective :one
-- The balance by effective time: entries recorded by that time, less those that take effect later, plus those recorded
-- later that took effect by that time. Entries without an effective time are in neither of the two sums.
select a.scale, a.version,
    (coalesce(r.balance_after, 0) - coalesce(early.amount, 0) + coalesce(late.amount, 0))::text as balance
from ledger_accounts a
cross join lateral (select ledger_version_at(a.tenant_id, a.account_id, @at::timestamptz) as version offset 0) v
left join lateral (
    select l.balance_after from ledger_entries l
    where l.tenant_id = a.tenant_id and l.account_id = a.account_id and l.version = v.version offset 0
) r on true
cross join lateral (
    select sum(l.amount) as amount from ledger_entries l
    where l.tenant_id = a.tenant_id and l.account_id = a.account_id
        and l.effective_at > @at::timestamptz and l.version <= v.version
) early
cross join lateral (
    select sum(l.amount) as amount from ledger_entries l
    where l.tenant_id = a.tenant_id and l.account_id = a.account_id
        and l.effective_at <= @at::timestamptz and l.version > v.version
) late
where a.tenant_id = @tenant_id::integer and a.code = @code::text and a.asset = @asset::text;

-- name: BalanceSum :many
-- Sums over the accounts that match, as text: a sum may have more digits than an amount.
select asset, scale, count(*) as accounts, sum(balance)::text as balance, sum(held)::text as held
from ledger_accounts
where tenant_id = @tenant_id::integer and code >= @low::text and code < @high::text and code ~ @match::text
    and (@only_asset::text = '' or asset = @only_asset::text)
group by asset, scale order by asset;

-- name: TrialBalancePage :many
-- Balances of the accounts that match, after a code and asset, in their order.
select code, asset, scale, kind, balance
from ledger_accounts
where tenant_id = @tenant_id::integer and (code, asset) > (@after_code::text, @after_asset::text)
    and code < @high::text and code ~ @match::text
    and (@only_asset::text = '' or asset = @only_asset::text)
order by code, asset
limit @count::integer;

-- name: TrialBalanceTotal :many
-- Totals over the accounts that match, as text: a sum may have more digits than an amount.
select asset, scale, sum(greatest(-balance, 0))::text as debit, sum(greatest(balance, 0))::text as credit
from ledger_accounts
where tenant_id = @tenant_id::integer and code >= @low::text and code < @high::text and code ~ @match::text
    and (@only_asset::text = '' or asset = @only_asset::text)
group by asset, scale order by asset;
