-- Orders of the Redis design, with the columns and indexes of ledgerd's.
create table redis_orders (like order_orders including all);
grant select, insert on redis_orders to ledgerd_app
