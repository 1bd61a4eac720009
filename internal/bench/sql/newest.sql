-- The newest transfer: what a run makes comes behind it.
select coalesce(max(transfer_id), 0) from ledger_transfers where tenant_id = $1
