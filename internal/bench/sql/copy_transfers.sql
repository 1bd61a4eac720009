-- The journal's transfers.
copy public.ledger_transfers (tenant_id, transfer_id, biz_no, type, recorded_at, principal, request_id) from stdin
