-- Stock: items with their counts, reservations, and changes of the stocked units. Locks nothing.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
set local role ledgerd_owner;

create table stock_items (
    tenant_id     integer not null,
    item          text collate "C" not null,
    segment       smallint not null,
    segments      smallint not null,
    strategy      text collate "C" not null,
    available     bigint not null,
    reserved      bigint not null,
    sold          bigint not null,
    stocked       bigint not null,
    version       bigint not null,
    next_expiry_at timestamptz,
    constraint stock_items_pkey primary key (tenant_id, item, segment),
    constraint stock_items_item_check check (octet_length(item) between 1 and 128),
    constraint stock_items_segment_check check (segments between 1 and 64 and segment between 0 and segments - 1),
    constraint stock_items_strategy_check
        check (strategy in ('batched', 'atomic', 'optimistic', 'pessimistic', 'advisory')),
    constraint stock_items_available_check check (available >= 0),
    constraint stock_items_reserved_check check (reserved >= 0),
    constraint stock_items_sold_check check (sold >= 0),
    constraint stock_items_stocked_check check (available + reserved + sold = stocked),
    constraint stock_items_version_check check (version >= 0)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
-- For the background task alone. "is not null" excludes it from lookups of one item: a plan made on an empty table
-- could use it, and read the whole index.
create index stock_items_due_idx on stock_items (next_expiry_at, tenant_id, item) where next_expiry_at is not null;
comment on table stock_items is
    'Counts of items, in one row, or in several segments. These are the hot rows: narrow, and without an index on '
    'counts. Constraints keep available from falling below zero in any row.';
comment on column stock_items.tenant_id is 'Tenant.';
comment on column stock_items.item is 'The caller''s name of the item, such as sku-1001.';
comment on column stock_items.segment is 'Segment, from 0. The counts of an item are the sums over its segments.';
comment on column stock_items.segments is 'Number of segments of the item: the same in all of its rows.';
comment on column stock_items.strategy is
    'Strategy of calls that name none: the same in all rows of the item.';
comment on column stock_items.available is 'Units that can be reserved or sold.';
comment on column stock_items.reserved is 'Units of open reservations.';
comment on column stock_items.sold is 'Units that are sold, without those that came back.';
comment on column stock_items.stocked is
    'Units put in, less those removed again: available + reserved + sold.';
comment on column stock_items.version is 'Number of changes.';
comment on column stock_items.next_expiry_at is
    'The earliest of these times of an item is a lower limit: none of its open reservations expires before it, '
    'whichever segments gave the units. Null in all rows: none expires.';

create table stock_item_details (
    tenant_id  integer not null,
    item       text collate "C" not null,
    label      text not null,
    metadata   jsonb not null default '{}',
    created_at timestamptz not null,
    changed_at timestamptz not null,
    principal  text collate "C" not null,
    request_id text collate "C" not null,
    constraint stock_item_details_pkey primary key (tenant_id, item),
    constraint stock_item_details_item_check check (octet_length(item) between 1 and 128),
    constraint stock_item_details_label_check check (octet_length(label) <= 1024),
    constraint stock_item_details_metadata_check check (octet_length(metadata::text) <= 131072)
);
comment on table stock_item_details is
    'Columns of items that are wide and seldom read. Guarded by the row lock of segment 0.';
comment on column stock_item_details.tenant_id is 'Tenant.';
comment on column stock_item_details.item is 'Item.';
comment on column stock_item_details.label is 'Label, for people; may be empty.';
comment on column stock_item_details.metadata is 'Metadata of the caller: names and values.';
comment on column stock_item_details.created_at is 'When it was created.';
comment on column stock_item_details.changed_at is 'When it was created or last updated by PutItem.';
comment on column stock_item_details.principal is 'Principal that created it or last updated it by PutItem.';
comment on column stock_item_details.request_id is 'X-Request-ID of that call.';

create table stock_reservations (
    tenant_id        integer not null,
    item             text collate "C" not null,
    reservation_no   text collate "C" not null,
    reservation_id   bigint not null,
    quantity         bigint not null,
    unsold           bigint not null,
    segment          smallint not null,
    draws            bigint[],
    state            text collate "C" not null,
    ref              text collate "C",
    life_ms          bigint,
    created_at       timestamptz not null,
    expires_at       timestamptz,
    closed_at        timestamptz,
    principal        text collate "C" not null,
    request_id       text collate "C" not null,
    closed_principal text collate "C",
    closed_request_id text collate "C",
    constraint stock_reservations_pkey primary key (tenant_id, item, reservation_no),
    constraint stock_reservations_reservation_no_check check (octet_length(reservation_no) between 1 and 128),
    constraint stock_reservations_state_check check (state in ('reserved', 'sold', 'cancelled', 'expired')),
    constraint stock_reservations_quantity_check check (quantity > 0 or quantity = 0 and state = 'cancelled'),
    constraint stock_reservations_unsold_check
        check (unsold between 0 and case state when 'sold' then quantity else 0 end),
    constraint stock_reservations_segment_check check (segment between 0 and 63),
    constraint stock_reservations_draws_check check (cardinality(draws) between 2 and 64),
    constraint stock_reservations_ref_check check (octet_length(ref) between 1 and 256),
    constraint stock_reservations_life_check check (life_ms > 0 and expires_at is not null
        or life_ms is null and expires_at is null and state in ('sold', 'cancelled')),
    constraint stock_reservations_closed_check check ((state = 'reserved') = (closed_at is null))
);
create index stock_reservations_item_idx on stock_reservations (tenant_id, item, expires_at, reservation_no)
    where state = 'reserved';
comment on table stock_reservations is
    'Reservations of units, and direct sales. Guarded by the row locks of the item.';
comment on column stock_reservations.tenant_id is 'Tenant.';
comment on column stock_reservations.item is 'Item.';
comment on column stock_reservations.reservation_no is 'The caller''s number. Unique for ever among those of the item.';
comment on column stock_reservations.reservation_id is 'Id; id >> 14 is the batch that made it.';
comment on column stock_reservations.quantity is 'Units; 0 if it was cancelled before it was made.';
comment on column stock_reservations.unsold is 'Units that came back after the sale.';
comment on column stock_reservations.segment is 'Segment that gave the units, or the first one if several did.';
comment on column stock_reservations.draws is
    'Units by segment, from segment 0, if several segments gave them; null: one did.';
comment on column stock_reservations.state is 'reserved while it is open; then sold, cancelled or expired.';
comment on column stock_reservations.ref is 'Purpose, according to the caller, such as an order number.';
comment on column stock_reservations.life_ms is
    'Requested life, in milliseconds; null: sold directly, or cancelled before it was made.';
comment on column stock_reservations.created_at is 'When it was made.';
comment on column stock_reservations.expires_at is 'When it expires, unless it has ended.';
comment on column stock_reservations.closed_at is 'When it was sold or cancelled; expires_at if it expired.';
comment on column stock_reservations.principal is 'Principal that made it.';
comment on column stock_reservations.request_id is 'X-Request-ID of the call that made it.';
comment on column stock_reservations.closed_principal is
    'Principal that sold or cancelled it by another call than the one that made it; null also if it expired.';
comment on column stock_reservations.closed_request_id is
    'X-Request-ID of the call that ended it, if that was another one; null also if it expired.';
create trigger stock_reservations_kept before delete or truncate
    or update of tenant_id, item, reservation_no, reservation_id, quantity, segment, draws, ref, life_ms, created_at,
        expires_at, principal, request_id on stock_reservations
    for each statement execute function commit_append_only();

create table stock_change_names (
    tenant_id integer not null,
    item      text collate "C" not null,
    change_no text collate "C" not null,
    change_id bigint not null,
    constraint stock_change_names_pkey primary key (tenant_id, item, change_no),
    constraint stock_change_names_change_no_check check (octet_length(change_no) between 1 and 128)
);
comment on table stock_change_names is 'The callers'' numbers of changes. Rows never change.';
comment on column stock_change_names.tenant_id is 'Tenant.';
comment on column stock_change_names.item is 'Item.';
comment on column stock_change_names.change_no is 'The caller''s number. Unique for ever among those of the item.';
comment on column stock_change_names.change_id is 'The change.';

create table stock_changes (
    tenant_id      integer not null,
    change_id      bigint not null,
    item           text collate "C" not null,
    change_no      text collate "C" not null,
    kind           text collate "C" not null,
    quantity       bigint not null,
    stocked_after  bigint not null,
    reservation_no text collate "C",
    reason         text not null,
    changed_at     timestamptz not null,
    principal      text collate "C" not null,
    request_id     text collate "C" not null,
    constraint stock_changes_pkey primary key (tenant_id, change_id),
    constraint stock_changes_kind_check check (kind in ('restock', 'adjust', 'unsell')),
    constraint stock_changes_quantity_check check (quantity > 0 or quantity < 0 and kind = 'adjust'),
    constraint stock_changes_stocked_after_check check (stocked_after >= 0),
    constraint stock_changes_reservation_no_check check ((kind = 'unsell') = (reservation_no is not null)),
    constraint stock_changes_reason_check check (octet_length(reason) <= 2048)
) with (autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000);
create index stock_changes_unsell_idx on stock_changes (tenant_id, item, reservation_no, change_id)
    where kind = 'unsell';
comment on table stock_changes is 'Changes of stock: goods that came in, were counted, or came back. Append-only.';
comment on column stock_changes.tenant_id is 'Tenant.';
comment on column stock_changes.change_id is 'Id; id >> 14 is the batch that committed it.';
comment on column stock_changes.item is 'Item.';
comment on column stock_changes.change_no is 'The caller''s number.';
comment on column stock_changes.kind is
    'restock: goods came in; adjust: a count or a loss corrected stocked; unsell: sold units came back.';
comment on column stock_changes.quantity is 'Units; negative if an adjustment took them away.';
comment on column stock_changes.stocked_after is 'stocked of the item after it.';
comment on column stock_changes.reservation_no is 'Reservation whose units came back.';
comment on column stock_changes.reason is 'Reason given by the caller; may be empty.';
comment on column stock_changes.changed_at is 'Time of the batch, by the database''s clock.';
comment on column stock_changes.principal is 'Principal of the caller.';
comment on column stock_changes.request_id is 'X-Request-ID of the call.';

create trigger stock_changes_append_only before update or delete or truncate on stock_changes
    for each statement execute function commit_append_only();

grant select, insert on stock_items, stock_item_details, stock_reservations, stock_change_names, stock_changes
    to ledgerd_app;
grant update (segments, strategy, available, reserved, sold, stocked, version, next_expiry_at)
    on stock_items to ledgerd_app;
grant update (label, metadata, changed_at, principal, request_id) on stock_item_details to ledgerd_app;
grant update (unsold, state, closed_at, closed_principal, closed_request_id) on stock_reservations to ledgerd_app;
grant select on stock_items, stock_item_details, stock_reservations, stock_change_names, stock_changes
    to ledgerd_audit;

create view audit.stock as
select t.name as tenant, i.item, d.label, i.available, i.reserved, i.sold, i.stocked, i.segments, i.strategy,
    i.changes, d.created_at, d.changed_at, d.request_id, d.metadata
from (
    select tenant_id, item, sum(available)::bigint as available, sum(reserved)::bigint as reserved,
        sum(sold)::bigint as sold, sum(stocked)::bigint as stocked, count(*) as segments, min(strategy) as strategy,
        sum(version)::bigint as changes
    from stock_items group by tenant_id, item
) i
left join stock_item_details d on d.tenant_id = i.tenant_id and d.item = i.item
left join access_tenants t on t.tenant_id = i.tenant_id;
comment on view audit.stock is 'Items with their counts.';
comment on column audit.stock.tenant is 'Name of the tenant.';
comment on column audit.stock.item is 'The caller''s name of the item.';
comment on column audit.stock.label is 'Label, for people; may be empty.';
comment on column audit.stock.available is 'Units that can be reserved or sold.';
comment on column audit.stock.reserved is 'Units of open reservations.';
comment on column audit.stock.sold is 'Units that are sold, without those that came back.';
comment on column audit.stock.stocked is 'Units put in, less those removed again: available + reserved + sold.';
comment on column audit.stock.segments is 'Number of rows that hold its counts.';
comment on column audit.stock.strategy is 'Strategy of calls that name none.';
comment on column audit.stock.changes is 'Number of changes of its counts.';
comment on column audit.stock.created_at is 'When it was created.';
comment on column audit.stock.changed_at is 'When it was created or last updated by PutItem.';
comment on column audit.stock.request_id is 'X-Request-ID of that call.';
comment on column audit.stock.metadata is 'Metadata of the caller: names and values.';

create view audit.reservations as
select t.name as tenant, r.item, r.reservation_no, r.quantity, r.unsold, r.state, r.ref, r.created_at, r.expires_at,
    r.state = 'reserved' and r.expires_at <= now() as due, r.closed_at, r.principal, r.request_id, r.closed_principal,
    r.closed_request_id, r.reservation_id
from stock_reservations r
left join access_tenants t on t.tenant_id = r.tenant_id;
comment on view audit.reservations is 'Reservations and direct sales.';
comment on column audit.reservations.tenant is 'Name of the tenant.';
comment on column audit.reservations.item is 'Item.';
comment on column audit.reservations.reservation_no is 'The caller''s number.';
comment on column audit.reservations.quantity is 'Units; 0 if it was cancelled before it was made.';
comment on column audit.reservations.unsold is 'Units that came back after the sale.';
comment on column audit.reservations.state is 'reserved, sold, cancelled or expired.';
comment on column audit.reservations.ref is 'Purpose, according to the caller.';
comment on column audit.reservations.created_at is 'When it was made.';
comment on column audit.reservations.expires_at is 'When it expires, or would have; null: sold directly.';
comment on column audit.reservations.due is
    'True if it has expired, and this will be recorded when the item is next used, or by the background task.';
comment on column audit.reservations.closed_at is 'When it was sold or cancelled, or expired.';
comment on column audit.reservations.principal is 'Principal that made it.';
comment on column audit.reservations.request_id is 'X-Request-ID of the call that made it.';
comment on column audit.reservations.closed_principal is
    'Principal that sold or cancelled it, by another call than the one that made it.';
comment on column audit.reservations.closed_request_id is 'X-Request-ID of the call that ended it, if another one did.';
comment on column audit.reservations.reservation_id is 'Id in stock_reservations.';

create view audit.stock_changes as
select t.name as tenant, c.item, c.change_no, c.kind, c.quantity, c.stocked_after, c.reservation_no, c.reason,
    c.changed_at, c.principal, c.request_id, c.change_id
from stock_changes c
left join access_tenants t on t.tenant_id = c.tenant_id;
comment on view audit.stock_changes is 'Goods that came in, were counted, or came back.';
comment on column audit.stock_changes.tenant is 'Name of the tenant.';
comment on column audit.stock_changes.item is 'Item.';
comment on column audit.stock_changes.change_no is 'The caller''s number.';
comment on column audit.stock_changes.kind is
    'restock: goods came in; adjust: a count or a loss corrected stocked; unsell: sold units came back.';
comment on column audit.stock_changes.quantity is 'Units; negative if an adjustment took them away.';
comment on column audit.stock_changes.stocked_after is 'stocked of the item after it.';
comment on column audit.stock_changes.reservation_no is 'Reservation whose units came back.';
comment on column audit.stock_changes.reason is 'Reason given by the caller; may be empty.';
comment on column audit.stock_changes.changed_at is 'When it was recorded, by the database''s clock.';
comment on column audit.stock_changes.principal is 'Principal of the caller.';
comment on column audit.stock_changes.request_id is 'X-Request-ID of the call.';
comment on column audit.stock_changes.change_id is 'Id in stock_changes.';
grant select on audit.stock, audit.reservations, audit.stock_changes to ledgerd_audit;
reset role;

-- +goose Down
drop view audit.stock_changes;
drop view audit.reservations;
drop view audit.stock;
drop table stock_changes;
drop table stock_change_names;
drop table stock_reservations;
drop table stock_item_details;
drop table stock_items;
