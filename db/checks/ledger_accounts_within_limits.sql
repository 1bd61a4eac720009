-- No account stands outside of its limits.
select tenant_id, account_id, code, asset, balance, held, min_balance, max_balance
from ledger_accounts
where balance - held < min_balance or balance > max_balance or held < 0
