-- The sum of all balances, which must be zero.
select coalesce(sum(balance), 0)::text from ledger_accounts where tenant_id = $1
