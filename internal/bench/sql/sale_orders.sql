-- Orders of a sale, and their buyers.
select count(*), count(distinct subject) from order_orders where tenant_id = $1 and sale = $2
