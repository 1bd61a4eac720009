-- Every account has an asset of its scale, and details. Its time is that of its batch, or earlier if an account of the
-- batch was ahead of the clock.
select a.tenant_id, a.account_id, a.code, a.asset, a.scale, s.scale as scale_expected,
    d.created_at, b.recorded_at as created_at_expected
from ledger_accounts a
left join ledger_assets s on s.tenant_id = a.tenant_id and s.code = a.asset
left join ledger_account_details d on d.tenant_id = a.tenant_id and d.account_id = a.account_id
left join commit_batches b on b.batch_id = a.account_id >> 14 and b.commands > 0
where s.code is null or s.scale <> a.scale or d.account_id is null or b.batch_id is null
    or b.recorded_at <> d.created_at
    and not (d.created_at < b.recorded_at and commit_time_taken(b.batch_id, b.recorded_at))
