-- Inserts the orders of winners.
insert into redis_orders (tenant_id, order_no, order_id, machine, subject, asset, scale, amount, lines, reserve, sale,
    sale_unit, principal, request_id, created_at)
select $1, u.order_no, 1, 'order', u.subject, 'CNY', 2, 100, '[{"item": "phone", "quantity": 1}]', true, $2, 1, 'bench',
    'bench', now()
from (select unnest($3::text[]) as order_no, unnest($4::text[]) as subject) u
