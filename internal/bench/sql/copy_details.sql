-- Wide columns of accounts.
copy public.ledger_account_details (tenant_id, account_id, created_at, request_id) from stdin
