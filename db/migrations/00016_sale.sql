-- Coupons and sales. The state of a coupon is that of its instance of the machine "coupon". Locks nothing.

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
-- Partial: on an empty table it would look as good as the primary key for a look-up by code.
create index coupon_coupons_campaign_idx on coupon_coupons (tenant_id, campaign, coupon_id) where campaign <> '';
comment on table coupon_coupons is
    'Coupons as they were issued. The state and the owner are those of the instance with the code as key. Append-only.';
comment on column coupon_coupons.tenant_id is 'Tenant.';
comment on column coupon_coupons.code is 'Code: given by the caller, or made by the service.';
comment on column coupon_coupons.coupon_id is
    'Id, that of the instance too; coupon_id >> 14 is the batch that issued it.';
comment on column coupon_coupons.campaign is 'Campaign. Each owner can have one coupon of it.';
comment on column coupon_coupons.expires_at is 'From when on it cannot be used.';
comment on column coupon_coupons.metadata is 'Metadata of the caller: names and values; null: none.';
comment on column coupon_coupons.principal is 'Principal of the caller that issued it.';
comment on column coupon_coupons.request_id is 'X-Request-ID of the call.';
comment on column coupon_coupons.created_at is 'When it was issued: time of its batch.';

create trigger coupon_coupons_append_only before update or delete or truncate on coupon_coupons
    for each statement execute function commit_append_only();
grant select, insert on coupon_coupons to ledgerd_app;
grant select on coupon_coupons to ledgerd_audit;

create table sale_sales (
    tenant_id      integer not null,
    sale           text collate "C" not null,
    item           text collate "C" not null,
    asset          text collate "C",
    amount         text collate "C",
    payee          text collate "C",
    pay_within_ms  bigint,
    machine        text collate "C",
    campaign       text collate "C",
    coupon_life_ms bigint,
    metadata       jsonb,
    per_buyer      smallint not null,
    once           boolean not null,
    opens_at       timestamptz,
    closes_at      timestamptz,
    principal      text collate "C" not null,
    request_id     text collate "C" not null,
    created_at     timestamptz not null,
    changed_at     timestamptz not null,
    constraint sale_sales_pkey primary key (tenant_id, sale),
    constraint sale_sales_sale_check check (sale ~ '^[a-z0-9][a-z0-9._-]{0,63}$'),
    constraint sale_sales_item_check check (octet_length(item) between 1 and 128),
    constraint sale_sales_gives_check check ((asset is null) = (campaign is not null)
        and (asset is null) = (amount is null) and (asset is null) = (machine is null)),
    constraint sale_sales_pay_within_check check (pay_within_ms > 0),
    constraint sale_sales_coupon_life_check check (coupon_life_ms > 0),
    constraint sale_sales_per_buyer_check check (per_buyer between 1 and 16),
    constraint sale_sales_hours_check check (closes_at > opens_at),
    constraint sale_sales_metadata_check check (octet_length(metadata::text) <= 131072)
);
comment on table sale_sales is
    'Sales of units of an item, first come, first served. The counts are those of the item.';
comment on column sale_sales.tenant_id is 'Tenant.';
comment on column sale_sales.sale is 'Name.';
comment on column sale_sales.item is 'Item whose units it gives.';
comment on column sale_sales.asset is 'Asset of the orders; null: it gives coupons.';
comment on column sale_sales.amount is 'Price of a unit, as a decimal.';
comment on column sale_sales.payee is 'Code of the account that is paid; null: none.';
comment on column sale_sales.pay_within_ms is
    'How long an order may stay unpaid, in milliseconds; null: as its machine says.';
comment on column sale_sales.machine is 'State machine of the orders.';
comment on column sale_sales.campaign is 'Campaign of the coupons; null: it gives orders.';
comment on column sale_sales.coupon_life_ms is 'Life of a coupon from the grab on, in milliseconds; null: 10 years.';
comment on column sale_sales.metadata is 'Metadata of each coupon: names and values; null: none.';
comment on column sale_sales.per_buyer is 'Largest number of units for each buyer.';
comment on column sale_sales.once is 'True if a buyer whose order was cancelled cannot grab again.';
comment on column sale_sales.opens_at is 'From when on units can be grabbed; null: always.';
comment on column sale_sales.closes_at is 'From when on they cannot; null: never.';
comment on column sale_sales.principal is 'Principal of the caller that last changed it.';
comment on column sale_sales.request_id is 'X-Request-ID of that call.';
comment on column sale_sales.created_at is 'When it was created.';
comment on column sale_sales.changed_at is 'When it was created or last changed.';

grant select, insert on sale_sales to ledgerd_app;
grant update (item, asset, amount, payee, pay_within_ms, machine, campaign, coupon_life_ms, metadata, per_buyer, once,
    opens_at, closes_at, principal, request_id, changed_at) on sale_sales to ledgerd_app;
grant select on sale_sales to ledgerd_audit;

create view audit.coupons as
select t.name as tenant, c.code, c.campaign, case when d.due then i.timer_to else i.state end as state, i.owner,
    case when d.due then 'timer' else i.cause end as cause,
    case when d.due then i.timer_at else i.changed_at end as changed_at, d.due, c.expires_at, c.metadata, c.principal,
    c.request_id, c.created_at, c.coupon_id
from coupon_coupons c
join machine_instances i on i.tenant_id = c.tenant_id and i.machine = 'coupon' and i.key = c.code
cross join lateral (select coalesce(i.timer_at <= now(), false) as due) d
left join access_tenants t on t.tenant_id = c.tenant_id;
comment on view audit.coupons is 'Coupons, as they count now.';
comment on column audit.coupons.tenant is 'Name of the tenant.';
comment on column audit.coupons.code is 'Code.';
comment on column audit.coupons.campaign is 'Campaign.';
comment on column audit.coupons.state is 'unclaimed, claimed, locked by an unpaid order, used or expired.';
comment on column audit.coupons.owner is 'Owner; null: it is not claimed yet.';
comment on column audit.coupons.cause is 'Cause of its last move, such as the order that locked or used it.';
comment on column audit.coupons.changed_at is 'Time of its last move, or of its creation.';
comment on column audit.coupons.due is 'True if it has expired, and the history does not have that yet.';
comment on column audit.coupons.expires_at is 'From when on it cannot be used.';
comment on column audit.coupons.metadata is 'Metadata of the caller: names and values.';
comment on column audit.coupons.principal is 'Principal that issued it.';
comment on column audit.coupons.request_id is 'X-Request-ID of the call that issued it.';
comment on column audit.coupons.created_at is 'When it was issued.';
comment on column audit.coupons.coupon_id is 'Id; coupon_id >> 14 is the batch that issued it.';

create view audit.sales as
select t.name as tenant, s.sale, s.item, i.available, i.reserved, i.sold,
    coalesce(s.opens_at <= now(), true) and coalesce(s.closes_at > now(), true) as open, s.opens_at, s.closes_at,
    s.per_buyer, s.once, s.asset, s.amount, s.payee, s.machine, s.campaign, s.principal, s.request_id, s.created_at,
    s.changed_at
from sale_sales s
cross join lateral (
    select sum(available)::bigint as available, sum(reserved)::bigint as reserved, sum(sold)::bigint as sold
    from stock_items x where x.tenant_id = s.tenant_id and x.item = s.item
) i
left join access_tenants t on t.tenant_id = s.tenant_id;
comment on view audit.sales is 'Sales, with the counts of their items.';
comment on column audit.sales.tenant is 'Name of the tenant.';
comment on column audit.sales.sale is 'Name.';
comment on column audit.sales.item is 'Item whose units it gives.';
comment on column audit.sales.available is 'Units that can be grabbed.';
comment on column audit.sales.reserved is 'Units that are reserved.';
comment on column audit.sales.sold is 'Units that are sold.';
comment on column audit.sales.open is 'True between its opening and its closing time.';
comment on column audit.sales.opens_at is 'From when on units can be grabbed; null: always.';
comment on column audit.sales.closes_at is 'From when on they cannot; null: never.';
comment on column audit.sales.per_buyer is 'Largest number of units for each buyer.';
comment on column audit.sales.once is 'True if a buyer whose order was cancelled cannot grab again.';
comment on column audit.sales.asset is 'Asset of the orders; null: it gives coupons.';
comment on column audit.sales.amount is 'Price of a unit.';
comment on column audit.sales.payee is 'Account that is paid; null: none.';
comment on column audit.sales.machine is 'State machine of the orders.';
comment on column audit.sales.campaign is 'Campaign of the coupons; null: it gives orders.';
comment on column audit.sales.principal is 'Principal that last changed it.';
comment on column audit.sales.request_id is 'X-Request-ID of that call.';
comment on column audit.sales.created_at is 'When it was created.';
comment on column audit.sales.changed_at is 'When it was created or last changed.';
grant select on audit.coupons, audit.sales to ledgerd_audit;
reset role;

-- +goose Down
drop view audit.sales;
drop view audit.coupons;
drop table sale_sales;
drop table coupon_coupons;
