-- An account's balance, version and last_entry_at match its entries.
select a.tenant_id, a.account_id, a.code, a.asset, a.balance, e.balance as balance_expected,
    a.version, e.version as version_expected, e.entries, a.version as entries_expected,
    a.last_entry_at, e.last_entry_at as last_entry_at_expected
from ledger_accounts a
cross join lateral (
    select coalesce(sum(l.amount), 0) as balance, coalesce(max(l.version), 0) as version, count(*) as entries,
        max(l.recorded_at) as last_entry_at
    from ledger_entries l
    where l.tenant_id = a.tenant_id and l.account_id = a.account_id
) e
where a.balance <> e.balance
    or a.version <> e.version
    or a.version <> e.entries
    or a.last_entry_at is distinct from e.last_entry_at
