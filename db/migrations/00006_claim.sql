-- Claims: keys that only their first caller gets, for a time or for ever. Locks nothing.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
set local role ledgerd_owner;

create table claim_keys (
    tenant_id  integer not null,
    scope      text collate "C" not null,
    key        text collate "C" not null,
    claim_id   bigint not null,
    uses       bigint not null,
    owner      text collate "C",
    result     text collate "C",
    parts      jsonb,
    principal  text collate "C" not null,
    request_id text collate "C" not null,
    claimed_at timestamptz not null,
    expires_at timestamptz,
    constraint claim_keys_pkey primary key (tenant_id, scope, key),
    constraint claim_keys_scope_check check (octet_length(scope) between 1 and 64),
    constraint claim_keys_key_check check (octet_length(key) between 1 and 1024),
    constraint claim_keys_owner_check check (octet_length(owner) between 1 and 256),
    constraint claim_keys_result_check check (octet_length(result) between 1 and 512),
    constraint claim_keys_parts_check check (jsonb_typeof(parts) = 'array'),
    constraint claim_keys_uses_check check (uses >= 1 and (uses = 1 or expires_at is not null)),
    constraint claim_keys_expires_check check (expires_at > claimed_at)
) with (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);
create index claim_keys_expires_idx on claim_keys (expires_at) where expires_at is not null;
comment on table claim_keys is 'Claimed keys. A row past expires_at counts as deleted.';
comment on column claim_keys.tenant_id is 'Tenant.';
comment on column claim_keys.scope is 'Kind of key, such as page or phone.';
comment on column claim_keys.key is
    'The key. A key made of parts is stored as netstrings, such as 5:order,4:1001,. If they are longer than 1,024 '
    'bytes, it is sha256: and their SHA-256 in hexadecimal.';
comment on column claim_keys.claim_id is
    'Fence of this claim. A key that was freed and claimed again has another one. claim_id >> 14 is the batch that '
    'created it.';
comment on column claim_keys.uses is
    'How often the key was used, including the first use. Refused uses are not counted.';
comment on column claim_keys.owner is 'Owner as named by the first call; null: none.';
comment on column claim_keys.result is 'Name of the result of the first call; null: it named none, or was refused.';
comment on column claim_keys.parts is 'Parts of the key, in order; null: a key without parts.';
comment on column claim_keys.principal is 'Principal of the first call.';
comment on column claim_keys.request_id is 'X-Request-ID of the first call.';
comment on column claim_keys.claimed_at is 'When the first call claimed it.';
comment on column claim_keys.expires_at is 'When it expires, measured from the first call; null: never.';

grant select, insert, delete on claim_keys to ledgerd_app;
grant update (claim_id, uses, owner, result, parts, principal, request_id, claimed_at, expires_at)
    on claim_keys to ledgerd_app;
grant select on claim_keys to ledgerd_audit;

create view audit.claims as
select t.name as tenant, c.scope, c.key, c.parts, c.owner, c.uses, c.result, c.claimed_at, c.expires_at,
    coalesce(c.expires_at <= now(), false) as expired, c.principal, c.request_id, c.claim_id
from claim_keys c
left join access_tenants t on t.tenant_id = c.tenant_id;
comment on view audit.claims is 'Claimed keys, such as page ids and business keys.';
comment on column audit.claims.tenant is 'Name of the tenant.';
comment on column audit.claims.scope is 'Kind of key, such as page or phone.';
comment on column audit.claims.key is 'The key. A key made of parts is stored as netstrings, such as 5:order,4:1001,.';
comment on column audit.claims.parts is 'Parts of the key, in order; null: a key without parts.';
comment on column audit.claims.owner is 'Owner; null: none.';
comment on column audit.claims.uses is 'How often it was used, including the first use.';
comment on column audit.claims.result is 'Name of the result of the first call.';
comment on column audit.claims.claimed_at is 'When the first call claimed it.';
comment on column audit.claims.expires_at is 'When it expires; null: never.';
comment on column audit.claims.expired is 'True if it has expired and counts as deleted.';
comment on column audit.claims.principal is 'Principal of the first call.';
comment on column audit.claims.request_id is 'X-Request-ID of the first call.';
comment on column audit.claims.claim_id is 'Fence of the claim; claim_id >> 14 is its batch.';

grant select on audit.claims to ledgerd_audit;
reset role;

-- +goose Down
drop view audit.claims;
drop table claim_keys;
