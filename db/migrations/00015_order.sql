-- Orders as they were created. The state of an order is that of its instance in machine_instances. Locks nothing.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
set local role ledgerd_owner;

create table order_orders (
    tenant_id          integer not null,
    order_no           text collate "C" not null,
    order_id           bigint not null,
    machine            text collate "C" not null,
    subject            text collate "C" not null,
    asset              text collate "C" not null,
    scale              smallint not null,
    amount             numeric(38, 0) not null,
    lines              jsonb,
    payee              text collate "C",
    pay_within_ms      bigint,
    life_ms            bigint,
    reserve            boolean not null,
    balance_account    text collate "C",
    balance_amount     numeric(38, 0),
    purchase_parts     jsonb,
    purchase_life_ms bigint,
    coupon             text collate "C",
    sale               text collate "C",
    sale_unit          smallint,
    once               boolean not null default false,
    metadata           jsonb,
    expiry_messages    jsonb,
    submit_token       bytea,
    principal          text collate "C" not null,
    request_id         text collate "C" not null,
    created_at         timestamptz not null,
    constraint order_orders_pkey primary key (tenant_id, order_no),
    constraint order_orders_order_no_check check (octet_length(order_no) between 1 and 64),
    constraint order_orders_subject_check check (octet_length(subject) between 1 and 128),
    constraint order_orders_scale_check check (scale between 0 and 18),
    constraint order_orders_amount_check check (amount >= 0),
    constraint order_orders_lines_check check (
        jsonb_typeof(lines) = 'array' and jsonb_array_length(lines) between 1 and 100),
    constraint order_orders_reserve_check check (not reserve or lines is not null),
    constraint order_orders_balance_check check ((balance_account is null) = (balance_amount is null)
        and (balance_account is null or payee is not null) and balance_amount > 0 and balance_amount <= amount),
    constraint order_orders_life_check check (pay_within_ms > 0 and life_ms > 0),
    constraint order_orders_purchase_check check ((purchase_parts is null) = (purchase_life_ms is null)),
    constraint order_orders_coupon_check check (octet_length(coupon) between 1 and 64),
    constraint order_orders_sale_check check (
        (sale is null) = (sale_unit is null) and (sale is not null or not once)),
    constraint order_orders_metadata_check check (octet_length(metadata::text) <= 131072),
    constraint order_orders_expiry_messages_check check (
        (expiry_messages is null or life_ms is not null)
        and jsonb_typeof(expiry_messages) = 'array' and jsonb_array_length(expiry_messages) between 1 and 10),
    constraint order_orders_submit_token_check check (octet_length(submit_token) = 32)
) with (autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000);
-- Partial: otherwise a plan made on an empty table could use them for a lookup by number, or the second one for a list
-- of a subject's orders.
create index order_orders_subject_idx on order_orders (tenant_id, subject, created_at, order_id) where subject <> '';
create index order_orders_created_idx on order_orders (tenant_id, created_at, order_id) where order_id > 0;
comment on table order_orders is
    'Orders as they were created. The state is that of the instance with the same number. Append-only.';
comment on column order_orders.tenant_id is 'Tenant.';
comment on column order_orders.order_no is 'Number: chosen by the caller, or made by the service.';
comment on column order_orders.order_id is 'Id, that of the instance too; order_id >> 14 is the batch that created it.';
comment on column order_orders.machine is
    'State machine that it follows: the instance has this machine and the order_no as key.';
comment on column order_orders.subject is 'Orderer: the caller''s name of the end user.';
comment on column order_orders.asset is 'Asset of the amounts.';
comment on column order_orders.scale is 'Decimals of the asset.';
comment on column order_orders.amount is 'Amount to pay, in minor units.';
comment on column order_orders.lines is
    'Lines: item, quantity, amount (a decimal; missing: not given), description. The nth line is reserved under the '
    'number order_no/n, from 1. Null: none.';
comment on column order_orders.payee is 'Code of the account that is paid; null: none.';
comment on column order_orders.pay_within_ms is
    'How long it may stay unpaid, in milliseconds, as given by the caller; null: as defined by the machine.';
comment on column order_orders.life_ms is
    'How long it may stay unpaid, in milliseconds; null: for ever. Reservations and the hold have the same life.';
comment on column order_orders.reserve is 'True if the units of its lines are reserved.';
comment on column order_orders.balance_account is 'Code of the account that pays balance_amount; null: none.';
comment on column order_orders.balance_amount is
    'Amount that balance_account pays, in minor units: the whole amount at once, or a part of it out of the hold '
    'order_no/hold.';
comment on column order_orders.purchase_parts is
    'Parts of the business key of its purchase: an order with the same parts is the same purchase; null: none.';
comment on column order_orders.purchase_life_ms is 'Life of that key in milliseconds.';
comment on column order_orders.coupon is 'Code of the coupon that it uses; null: none.';
comment on column order_orders.sale is 'Sale in which it was won; null: none.';
comment on column order_orders.sale_unit is 'Number of the unit among those of its buyer in the sale, from 1.';
comment on column order_orders.once is 'True if the buyer cannot win this unit again after the order is cancelled.';
comment on column order_orders.metadata is 'Metadata of the caller: names and values; null: none.';
comment on column order_orders.expiry_messages is
    'Numbers of the messages that are due at the end of its time to pay, unless it is paid or cancelled before; null: '
    'none.';
comment on column order_orders.submit_token is 'SHA-256 of the submit token of the call that created it; null: none.';
comment on column order_orders.principal is 'Principal of the caller that created it.';
comment on column order_orders.request_id is 'X-Request-ID of the call.';
comment on column order_orders.created_at is 'When it was created: time of its batch.';

create trigger order_orders_append_only before update or delete or truncate on order_orders
    for each statement execute function commit_append_only();
grant select, insert on order_orders to ledgerd_app;
grant select on order_orders to ledgerd_audit;

create view audit.orders as
select t.name as tenant, o.order_no, o.subject, case when d.due then i.timer_to else i.state end as state,
    case when d.due then 'timer' else i.cause end as cause, i.revision + d.due::integer as revision,
    case when d.due then i.timer_at else i.changed_at end as changed_at, d.due,
    case when not d.due then i.timer_at end as timer_at, o.asset, audit.decimal(o.amount, o.scale) as amount,
    o.payee, o.reserve, o.balance_account, audit.decimal(o.balance_amount, o.scale) as balance_amount, o.lines,
    o.purchase_parts, o.metadata, o.machine, o.principal, o.request_id, o.created_at, o.order_id,
    o.coupon, o.sale
from order_orders o
join machine_instances i on i.tenant_id = o.tenant_id and i.machine = o.machine and i.key = o.order_no
cross join lateral (select coalesce(i.timer_at <= now(), false) as due) d
left join access_tenants t on t.tenant_id = o.tenant_id;
comment on view audit.orders is
    'Orders in their present states: once its timer has fired, an order is shown in the state to which the timer moves '
    'it.';
comment on column audit.orders.tenant is 'Name of the tenant.';
comment on column audit.orders.order_no is 'Number.';
comment on column audit.orders.subject is 'Orderer: the caller''s name of the end user.';
comment on column audit.orders.state is 'State.';
comment on column audit.orders.cause is 'Cause of the last move.';
comment on column audit.orders.revision is 'Number of its moves, its creation included.';
comment on column audit.orders.changed_at is 'Time of its last move, or of its creation.';
comment on column audit.orders.due is 'True if its timer has fired, and the move is not recorded yet.';
comment on column audit.orders.timer_at is 'When the timer of its state fires; null: the state has none.';
comment on column audit.orders.asset is 'Asset of the amounts.';
comment on column audit.orders.amount is 'Amount to pay.';
comment on column audit.orders.payee is 'Account that is paid; null: none.';
comment on column audit.orders.reserve is 'True if the units of its lines were reserved.';
comment on column audit.orders.balance_account is 'Account that pays balance_amount; null: none.';
comment on column audit.orders.balance_amount is 'Amount that balance_account pays.';
comment on column audit.orders.lines is 'Lines: item, quantity, amount, description.';
comment on column audit.orders.purchase_parts is 'Parts of the business key of its purchase; null: none.';
comment on column audit.orders.metadata is 'Metadata of the caller: names and values.';
comment on column audit.orders.machine is 'State machine that it follows.';
comment on column audit.orders.principal is 'Principal that created it.';
comment on column audit.orders.request_id is 'X-Request-ID of the call that created it.';
comment on column audit.orders.created_at is 'When it was created.';
comment on column audit.orders.order_id is 'Id; order_id >> 14 is the batch that created it.';
comment on column audit.orders.coupon is 'Code of the coupon that it uses; null: none.';
comment on column audit.orders.sale is 'Sale in which it was won; null: none.';
grant select on audit.orders to ledgerd_audit;
reset role;

-- +goose Down
drop view audit.orders;
drop table order_orders;
