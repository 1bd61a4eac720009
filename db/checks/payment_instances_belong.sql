-- Every instance of the machines "payment" and "refund" belongs to a payment or refund, except for a payment that a
-- gateway reported and that was not created.
select i.tenant_id, i.machine, i.key, i.instance_id, i.state
from machine_instances i
left join payment_payments p on i.machine = 'payment' and p.tenant_id = i.tenant_id and p.out_trade_no = i.key
left join payment_refunds r on i.machine = 'refund' and r.tenant_id = i.tenant_id and r.refund_no = i.key
where i.machine in ('payment', 'refund') and p.out_trade_no is null and r.refund_no is null
    and not (i.machine = 'payment' and (i.state = 'unexpected' or i.state = 'late' and i.came_from = 'unexpected'))
