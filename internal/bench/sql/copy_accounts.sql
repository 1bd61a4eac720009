-- The accounts, with the balances and versions after their entries.
copy public.ledger_accounts (tenant_id, account_id, code, asset, scale, kind, state, balance, held, min_balance,
    version, last_entry_at) from stdin
