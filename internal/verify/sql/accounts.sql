-- The next accounts of a tenant, each with the number of entries that it will have read.
select account_id, version from ledger_accounts where tenant_id = $1 and account_id >= $2 order by account_id limit $3
