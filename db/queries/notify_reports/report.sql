-- Reads for delivery reports of providers.

-- name: SentTenant :many
-- Tenants of messages by the ids that a provider gave them.
select distinct e.tenant_id
from notify_events e
where e.provider_message_id = @provider_message_id and e.provider = @provider and e.kind = 'sent'
limit 2;
