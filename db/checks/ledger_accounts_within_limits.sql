-- No account is beyond its limits, and closed accounts are empty.
select tenant_id, account_id, code, asset, state, balance, held, min_balance, max_balance
from ledger_accounts
where balance - held < min_balance
    or balance > max_balance
    or held < 0
    or (state = 'closed' and (balance <> 0 or held <> 0))
