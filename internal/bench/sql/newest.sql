-- The greatest transfer id. Transfers of the next run have greater ones.
select coalesce(max(transfer_id), 0) from ledger_transfers where tenant_id = $1
