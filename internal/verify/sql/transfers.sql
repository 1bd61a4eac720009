-- The next transfers of a tenant.
select transfer_id, 1::bigint from ledger_transfers where tenant_id = $1 and transfer_id >= $2
    order by transfer_id limit $3
