-- Sales: items that are sold first come, first served, with a limit for each buyer. Locks nothing.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
set local role ledgerd_owner;

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
comment on column sale_sales.opens_at is 'When units can be grabbed; null: always.';
comment on column sale_sales.closes_at is 'When units can no longer be grabbed; null: never.';
comment on column sale_sales.principal is 'Principal of the caller that last changed it.';
comment on column sale_sales.request_id is 'X-Request-ID of that call.';
comment on column sale_sales.created_at is 'When it was created.';
comment on column sale_sales.changed_at is 'When it was created or last changed.';

grant select, insert on sale_sales to ledgerd_app;
grant update (item, asset, amount, payee, pay_within_ms, machine, campaign, coupon_life_ms, metadata, per_buyer, once,
    opens_at, closes_at, principal, request_id, changed_at) on sale_sales to ledgerd_app;
grant select on sale_sales to ledgerd_audit;

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
comment on column audit.sales.opens_at is 'When units can be grabbed; null: always.';
comment on column audit.sales.closes_at is 'When units can no longer be grabbed; null: never.';
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
grant select on audit.sales to ledgerd_audit;
reset role;

-- +goose Down
drop view audit.sales;
drop table sale_sales;
