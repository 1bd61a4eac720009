-- The entries of a transfer sum to zero in every asset.
select tenant_id, transfer_id, asset, sum(amount) as off
from ledger_entries
group by tenant_id, transfer_id, asset
having sum(amount) <> 0
