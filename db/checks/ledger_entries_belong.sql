-- Every entry belongs to a transfer and an account of its tenant, and repeats their time and asset.
select e.tenant_id, e.account_id, e.version, e.transfer_id
from ledger_entries e
left join ledger_transfers t using (tenant_id, transfer_id)
left join ledger_accounts a using (tenant_id, account_id)
where t.transfer_id is null or a.account_id is null or a.asset <> e.asset
    or t.recorded_at <> e.recorded_at or t.effective_at is distinct from e.effective_at
