-- All balances together: always nothing.
select coalesce(sum(balance), 0)::text from ledger_accounts where tenant_id = $1
