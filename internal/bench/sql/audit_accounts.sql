-- Audit events of the unbounded accounts, as if the server had created them.
insert into audit_events (tenant_id, event_id, kind, name, after, recorded_at, database_role)
select a.tenant_id, nextval('audit_event_seq'), 'account', a.code || ' ' || a.asset,
    jsonb_build_object('state', a.state, 'min_balance', a.min_balance), now(), session_user
from ledger_accounts a
where a.tenant_id = $1 and a.min_balance is null
