-- Orders that Redis has decided on: the columns and indexes of ours.
create table redis_orders (like order_orders including all);
grant select, insert on redis_orders to ledgerd_app
