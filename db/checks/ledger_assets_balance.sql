-- The balances of all accounts of an asset sum to zero.
select tenant_id, asset, sum(balance) as balance, 0 as balance_expected
from ledger_accounts
group by tenant_id, asset
having sum(balance) <> 0
