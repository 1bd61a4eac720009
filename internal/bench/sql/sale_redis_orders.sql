-- Orders of a sale.
select count(*) from redis_orders where tenant_id = $1 and sale = $2
