-- Every entry belongs to a transfer and an account of its tenant, with the same times and asset.
select e.tenant_id, e.account_id, e.version, e.transfer_id,
    case when t.transfer_id is null then 'there is no such transfer'
        when a.account_id is null then 'there is no such account' end as problem,
    e.asset, a.asset as asset_expected, e.recorded_at, t.recorded_at as recorded_at_expected,
    e.effective_at, t.effective_at as effective_at_expected
from ledger_entries e
left join ledger_transfers t on t.tenant_id = e.tenant_id and t.transfer_id = e.transfer_id
left join ledger_accounts a on a.tenant_id = e.tenant_id and a.account_id = e.account_id
where t.transfer_id is null
    or a.account_id is null
    or a.asset <> e.asset
    or t.recorded_at <> e.recorded_at
    or t.effective_at is distinct from e.effective_at
