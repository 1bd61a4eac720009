-- name: AssetList :many
-- All assets of a tenant.
select code, scale from ledger_assets where tenant_id = @tenant_id order by code;
