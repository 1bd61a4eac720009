-- Orders: what was ordered. The state of an order is that of its instance in machine_instances. Locks nothing.

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
    purchase_window_ms bigint,
    metadata           jsonb,
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
    constraint order_orders_purchase_check check ((purchase_parts is null) = (purchase_window_ms is null)),
    constraint order_orders_metadata_check check (octet_length(metadata::text) <= 131072)
) with (autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000);
-- Partial: on an empty table they would look as good as the primary key for a look-up by number, and the second as good
-- as the first for a list of a subject's orders.
create index order_orders_subject_idx on order_orders (tenant_id, subject, created_at, order_id) where subject <> '';
create index order_orders_created_idx on order_orders (tenant_id, created_at, order_id) where order_id > 0;
comment on table order_orders is
    'Orders: what was ordered. The state is that of the instance with the same number. Append-only.';
comment on column order_orders.tenant_id is 'Tenant.';
comment on column order_orders.order_no is 'Number: chosen by the caller, or made by the service.';
comment on column order_orders.order_id is 'Id, that of the instance too; order_id >> 14 is the batch that created it.';
comment on column order_orders.machine is
    'State machine that it follows: the instance has this machine and the order_no as key.';
comment on column order_orders.subject is 'Who ordered.';
comment on column order_orders.asset is 'Asset of the amounts.';
comment on column order_orders.scale is 'Decimals of the asset.';
comment on column order_orders.amount is 'What is to be paid, in minor units.';
comment on column order_orders.lines is
    'Lines: item, quantity, amount (a decimal; missing: not said), description. The nth line is reserved under the '
    'number order_no/n, from 1. Null: none.';
comment on column order_orders.payee is 'Code of the account that is paid; null: none.';
comment on column order_orders.pay_within_ms is
    'How long it may stay unpaid, in milliseconds, as the caller said; null: as the machine says.';
comment on column order_orders.life_ms is
    'How long it may stay unpaid, in milliseconds; null: for ever. Reservations and the hold have the same life.';
comment on column order_orders.reserve is 'True if the units of its lines are reserved.';
comment on column order_orders.balance_account is 'Code of the account that pays balance_amount; null: none.';
comment on column order_orders.balance_amount is
    'What balance_account pays, in minor units: if it is all, at once, else out of the hold order_no/hold.';
comment on column order_orders.purchase_parts is
    'Parts of the business key that makes it the same purchase as another order; null: none.';
comment on column order_orders.purchase_window_ms is 'Life of that key in milliseconds.';
comment on column order_orders.metadata is 'Metadata of the caller: names and values; null: none.';
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
    o.purchase_parts, o.metadata, o.machine, o.principal, o.request_id, o.created_at, o.order_id
from order_orders o
join machine_instances i on i.tenant_id = o.tenant_id and i.machine = o.machine and i.key = o.order_no
cross join lateral (select coalesce(i.timer_at <= now(), false) as due) d
left join access_tenants t on t.tenant_id = o.tenant_id;
comment on view audit.orders is
    'Orders, as they count now: past its timer, an order is in the state to which that moves it.';
comment on column audit.orders.tenant is 'Name of the tenant.';
comment on column audit.orders.order_no is 'Number.';
comment on column audit.orders.subject is 'Who ordered.';
comment on column audit.orders.state is 'State.';
comment on column audit.orders.cause is 'Cause of the last move.';
comment on column audit.orders.revision is 'Number of its moves, its creation included.';
comment on column audit.orders.changed_at is 'When it got into its state.';
comment on column audit.orders.due is 'True if its timer has moved it, and the history does not have the move yet.';
comment on column audit.orders.timer_at is 'When the timer of its state fires; null: the state has none.';
comment on column audit.orders.asset is 'Asset of the amounts.';
comment on column audit.orders.amount is 'What is to be paid.';
comment on column audit.orders.payee is 'Account that is paid; null: none.';
comment on column audit.orders.reserve is 'True if the units of its lines were reserved.';
comment on column audit.orders.balance_account is 'Account that pays balance_amount; null: none.';
comment on column audit.orders.balance_amount is 'What that account pays.';
comment on column audit.orders.lines is 'Lines: item, quantity, amount, description.';
comment on column audit.orders.purchase_parts is 'What makes it the same purchase as another order; null: nothing.';
comment on column audit.orders.metadata is 'Metadata of the caller: names and values.';
comment on column audit.orders.machine is 'State machine that it follows.';
comment on column audit.orders.principal is 'Principal that created it.';
comment on column audit.orders.request_id is 'X-Request-ID of the call that created it.';
comment on column audit.orders.created_at is 'When it was created.';
comment on column audit.orders.order_id is 'Id; order_id >> 14 is the batch that created it.';

create view audit.order_story as
select t.name as tenant, o.order_no, s.at, s.what, s.name, s.detail, s.principal, s.request_id
from order_orders o
cross join lateral (
    select h.recorded_at as at, 'move'::text as what, h.to_state as name,
        h.cause || coalesce(': ' || h.reason, '') as detail, h.principal, h.request_id
    from machine_history h where h.tenant_id = o.tenant_id and h.instance_id = o.order_id
    union all
    select x.at, x.what, r.item || ' ' || r.reservation_no, r.quantity || ' ' || x.state, x.principal, x.request_id
    from jsonb_array_elements(o.lines) with ordinality as l (line, n)
    cross join lateral (
        select * from stock_reservations v
        where o.reserve and v.tenant_id = o.tenant_id and v.item = l.line ->> 'item'
            and v.reservation_no = o.order_no || '/' || l.n
        offset 0
    ) r
    cross join lateral (
        values (r.created_at, 'reservation', 'reserved', r.principal, r.request_id),
            (r.closed_at, 'reservation ended', r.state, null, coalesce(r.closed_request_id, r.request_id))
    ) x (at, what, state, principal, request_id)
    where x.at is not null
    union all
    select x.at, x.what, h.biz_no, audit.decimal(h.amount, o.scale) || ' ' || o.asset || ' ' || x.state,
        x.principal, x.request_id
    from (
        select * from ledger_holds v
        where o.balance_account is not null and v.tenant_id = o.tenant_id and v.biz_no = o.order_no || '/hold'
        offset 0
    ) h
    cross join lateral (
        values (h.created_at, 'hold', 'held', h.principal, h.request_id),
            (h.closed_at, 'hold ended', h.state, null, null)
    ) x (at, what, state, principal, request_id)
    where x.at is not null
    union all
    select f.recorded_at, 'transfer', f.biz_no, f.type, f.principal, f.request_id
    from (
        select * from ledger_transfers v
        where o.balance_account is not null and v.tenant_id = o.tenant_id and v.biz_no = o.order_no || '/pay'
        offset 0
    ) f
    union all
    select m.accepted_at, 'message', n.biz_no, m.channel || ' ' || m.business_type, m.principal, m.request_id
    from (
        select v.biz_no, v.message_id from notify_names v
        where v.tenant_id = o.tenant_id and v.biz_no >= o.order_no || '/message/'
            and v.biz_no < o.order_no || '/message0'
            and substr(v.biz_no, length(o.order_no || '/message/') + 1) ~ '^[0-9]+$' -- not of another order
        offset 0
    ) n
    join notify_messages m on m.tenant_id = o.tenant_id and m.message_id = n.message_id
) s
left join access_tenants t on t.tenant_id = o.tenant_id;
comment on view audit.order_story is
    'Everything that happened to an order: its moves, and what became of its reservations, its hold, its transfer and '
    'its messages. Ask for one order, by tenant and order_no, in the order of at.';
comment on column audit.order_story.tenant is 'Name of the tenant.';
comment on column audit.order_story.order_no is 'Number of the order.';
comment on column audit.order_story.at is 'When it happened.';
comment on column audit.order_story.what is
    'move: of the order, or its creation; reservation; reservation ended; hold; hold ended; transfer; message: '
    'accepted, with the biz_no order_no/message/1, 2 and so on.';
comment on column audit.order_story.name is
    'State that the order entered; item and number of the reservation; biz_no of the hold, transfer or message.';
comment on column audit.order_story.detail is
    'Cause and reason of the move; quantity and state of the reservation; amount and state of the hold; type of the '
    'transfer; channel and business type of the message.';
comment on column audit.order_story.principal is 'Principal of the caller, where it is recorded.';
comment on column audit.order_story.request_id is 'X-Request-ID of the call, where it is recorded.';
grant select on audit.orders, audit.order_story to ledgerd_audit;

-- Adds orders to audit.requests, whatever other branches the view has by now.
-- +goose StatementBegin
do $$
declare
    was text := rtrim(pg_get_viewdef('audit.requests'::regclass), ';');
    about text[] := array[
        'what', ' order: created.',
        'name', ' Of orders: number.',
        'detail', ' Of orders: subject.'
    ];
begin
    execute 'create or replace view audit.requests as ' || was || $view$
union all
select t.name as tenant, r.request_id, r.at, r.what, r.name, r.detail, r.principal, r.id
from (
    select tenant_id, request_id, created_at as at, 'order'::text as what, order_no as name, subject as detail,
        principal, order_id as id
    from order_orders
) r
left join access_tenants t on t.tenant_id = r.tenant_id$view$;
    for i in 1 .. 5 by 2 loop
        execute format('comment on column audit.requests.%I is %L', about[i],
            (select col_description(attrelid, attnum) from pg_attribute
            where attrelid = 'audit.requests'::regclass and attname = about[i]) || about[i + 1]);
    end loop;
end
$$;
-- +goose StatementEnd
reset role;

-- +goose Down
-- +goose StatementBegin
do $$
begin
    -- Without its last branch, which Up has added.
    execute 'create or replace view audit.requests as '
        || regexp_replace(pg_get_viewdef('audit.requests'::regclass),
            '^(.*)\mUNION ALL\s+SELECT t\.name AS tenant,.*$', '\1');
end
$$;
-- +goose StatementEnd
drop view audit.order_story;
drop view audit.orders;
drop table order_orders;
