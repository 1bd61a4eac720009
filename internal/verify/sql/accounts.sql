-- The next accounts of a tenant, each with its number of entries, which the checks will read.
select account_id, version from ledger_accounts where tenant_id = $1 and account_id >= $2 order by account_id limit $3
