-- What reports of providers need.

-- name: SentTenant :many
-- Whose message has a number at a provider: each tenant is asked through the index.
select t.tenant_id
from access_tenants t
cross join lateral (
    select 1
    from notify_events e
    where e.tenant_id = t.tenant_id and e.provider = @provider and e.provider_message_id = @provider_message_id and e.kind = 'sent'
    limit 1
) s
limit 2;
