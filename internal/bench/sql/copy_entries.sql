-- The journal's entries.
copy public.ledger_entries (tenant_id, account_id, version, transfer_id, recorded_at, posting, asset, amount,
    balance_before, balance_after) from stdin
