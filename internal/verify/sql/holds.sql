-- The next holds of a tenant.
select hold_id, 1::bigint from ledger_holds where tenant_id = $1 and hold_id >= $2 order by hold_id limit $3
