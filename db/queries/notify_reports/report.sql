-- What reports of providers need.

-- name: SentTenant :many
-- Whose message has a number at a provider.
select distinct e.tenant_id
from notify_events e
where e.provider_message_id = @provider_message_id and e.provider = @provider and e.kind = 'sent'
limit 2;
