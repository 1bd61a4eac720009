-- Limits and state of every account equal its last event in the audit log. An account without an event is open, and
-- cannot be overdrawn.
select a.tenant_id, a.account_id, a.code, a.asset, e.event_id, a.state, e.after ->> 'state' as state_expected,
    a.min_balance, (e.after ->> 'min_balance')::numeric * 10::numeric ^ a.scale as min_balance_expected,
    a.max_balance, (e.after ->> 'max_balance')::numeric * 10::numeric ^ a.scale as max_balance_expected
from ledger_accounts a
left join lateral (
    select x.event_id, x.after from audit_events x
    where x.tenant_id = a.tenant_id and x.kind = 'account' and x.name = a.code || ' ' || a.asset
    order by x.event_id desc
    limit 1
) e on true
where case when e.event_id is null then a.state <> 'open' or coalesce(a.min_balance < 0, true)
    else a.state is distinct from e.after ->> 'state'
        or a.min_balance is distinct from (e.after ->> 'min_balance')::numeric * 10::numeric ^ a.scale
        or a.max_balance is distinct from (e.after ->> 'max_balance')::numeric * 10::numeric ^ a.scale end
