-- Coupons. The state of a coupon is that of its instance of the machine "coupon". Locks nothing.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
set local role ledgerd_owner;

create table coupon_coupons (
    tenant_id  integer not null,
    code       text collate "C" not null,
    coupon_id  bigint not null,
    campaign   text collate "C" not null,
    expires_at timestamptz not null,
    metadata   jsonb,
    principal  text collate "C" not null,
    request_id text collate "C" not null,
    created_at timestamptz not null,
    constraint coupon_coupons_pkey primary key (tenant_id, code),
    constraint coupon_coupons_code_check check (octet_length(code) between 1 and 64),
    constraint coupon_coupons_campaign_check check (campaign ~ '^[a-z0-9][a-z0-9._-]{0,63}$'),
    constraint coupon_coupons_metadata_check check (octet_length(metadata::text) <= 131072)
) with (autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000);
-- Partial: otherwise a plan made on an empty table could use it for a lookup by code.
create index coupon_coupons_campaign_idx on coupon_coupons (tenant_id, campaign, coupon_id) where campaign <> '';
comment on table coupon_coupons is
    'Coupons as they were issued. The state and the owner are those of the instance with the code as key. Append-only.';
comment on column coupon_coupons.tenant_id is 'Tenant.';
comment on column coupon_coupons.code is 'Code: given by the caller, or made by the service.';
comment on column coupon_coupons.coupon_id is
    'Id, that of the instance too; coupon_id >> 14 is the batch that issued it.';
comment on column coupon_coupons.campaign is 'Campaign. Each owner can have one coupon of it.';
comment on column coupon_coupons.expires_at is 'When it expires: it cannot be used from then on.';
comment on column coupon_coupons.metadata is 'Metadata of the caller: names and values; null: none.';
comment on column coupon_coupons.principal is 'Principal of the caller that issued it.';
comment on column coupon_coupons.request_id is 'X-Request-ID of the call.';
comment on column coupon_coupons.created_at is 'When it was issued: time of its batch.';

create trigger coupon_coupons_append_only before update or delete or truncate on coupon_coupons
    for each statement execute function commit_append_only();
grant select, insert on coupon_coupons to ledgerd_app;
grant select on coupon_coupons to ledgerd_audit;

create view audit.coupons as
select t.name as tenant, c.code, c.campaign, case when d.due then i.timer_to else i.state end as state, i.owner,
    case when d.due then 'timer' else i.cause end as cause,
    case when d.due then i.timer_at else i.changed_at end as changed_at, d.due, c.expires_at, c.metadata, c.principal,
    c.request_id, c.created_at, c.coupon_id
from coupon_coupons c
join machine_instances i on i.tenant_id = c.tenant_id and i.machine = 'coupon' and i.key = c.code
cross join lateral (select coalesce(i.timer_at <= now(), false) as due) d
left join access_tenants t on t.tenant_id = c.tenant_id;
comment on view audit.coupons is 'Coupons in their present states.';
comment on column audit.coupons.tenant is 'Name of the tenant.';
comment on column audit.coupons.code is 'Code.';
comment on column audit.coupons.campaign is 'Campaign.';
comment on column audit.coupons.state is 'unclaimed, claimed, locked by an unpaid order, used or expired.';
comment on column audit.coupons.owner is 'Owner; null: it is not claimed yet.';
comment on column audit.coupons.cause is 'Cause of its last move, such as the order that locked or used it.';
comment on column audit.coupons.changed_at is 'Time of its last move, or of its creation.';
comment on column audit.coupons.due is 'True if it has expired, and that is not recorded yet.';
comment on column audit.coupons.expires_at is 'When it expires: it cannot be used from then on.';
comment on column audit.coupons.metadata is 'Metadata of the caller: names and values.';
comment on column audit.coupons.principal is 'Principal that issued it.';
comment on column audit.coupons.request_id is 'X-Request-ID of the call that issued it.';
comment on column audit.coupons.created_at is 'When it was issued.';
comment on column audit.coupons.coupon_id is 'Id; coupon_id >> 14 is the batch that issued it.';
grant select on audit.coupons to ledgerd_audit;
reset role;

-- +goose Down
drop view audit.coupons;
drop table coupon_coupons;
