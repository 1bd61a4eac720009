-- All accounts of an asset together have nothing.
select tenant_id, asset, sum(balance) as off from ledger_accounts group by tenant_id, asset having sum(balance) <> 0
