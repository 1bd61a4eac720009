-- The entries of a transfer sum to zero in every asset.
select e.tenant_id, e.transfer_id, (
        select t.biz_no from ledger_transfers t where t.tenant_id = e.tenant_id and t.transfer_id = e.transfer_id
    ) as biz_no, e.asset, e.total, 0 as total_expected
from (
    select tenant_id, transfer_id, asset, sum(amount) as total
    from ledger_entries
    group by tenant_id, transfer_id, asset
    having sum(amount) <> 0
) e
