-- An account's balance, version and time are those of its entries.
select a.tenant_id, a.account_id, a.code, a.asset, a.balance, e.balance as entries_balance, a.version, e.version as entries_version
from ledger_accounts a
left join (
    select tenant_id, account_id, sum(amount) as balance, count(*) as entries, max(version) as version, max(recorded_at) as last_at
    from ledger_entries group by tenant_id, account_id
) e using (tenant_id, account_id)
where a.balance <> coalesce(e.balance, 0)
    or a.version <> coalesce(e.version, 0)
    or a.version <> coalesce(e.entries, 0)
    or a.last_entry_at is distinct from e.last_at
