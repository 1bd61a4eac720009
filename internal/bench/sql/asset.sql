-- The one asset.
insert into public.ledger_assets (tenant_id, code, scale, created_at) values ($1, $2, $3, clock_timestamp())
