-- Every open payment and refund has one scheduled call, to its own gateway; those that have ended have none.
-- Exceptions: a payment that was not created has only the call "flag", and one that has ended may have "close" or
-- "flag".
select coalesce(i.tenant_id, c.tenant_id) as tenant_id, coalesce(i.machine, c.subject) as subject,
    coalesce(i.key, c.number) as number, i.state,
    case when c.number is null then 'no call is due' when i.key is null then 'a call is due'
        when (i.state = 'unexpected') <> (c.call = 'flag') then 'another call is due' end as problem,
    c.call, c.gateway, coalesce(p.gateway, r.gateway, c.gateway) as gateway_expected
from (
    select y.tenant_id, y.machine, y.key, y.state from machine_instances y
    where y.machine = 'payment' and y.state in ('created', 'submitted', 'declined', 'unexpected')
        or y.machine = 'refund' and y.state in ('requested', 'submitted', 'abnormal')
) i
full join payment_calls c on c.tenant_id = i.tenant_id and c.subject = i.machine and c.number = i.key
left join payment_payments p on c.subject = 'payment' and p.tenant_id = c.tenant_id and p.out_trade_no = c.number
left join payment_refunds r on c.subject = 'refund' and r.tenant_id = c.tenant_id and r.refund_no = c.number
where c.number is null or i.key is null and c.call <> 'flag' and not exists (
        select from machine_instances y
        where y.tenant_id = c.tenant_id and y.machine = c.subject and y.key = c.number and y.state = 'closed'
    ) or (i.state = 'unexpected') <> (c.call = 'flag')
    or c.gateway <> coalesce(p.gateway, r.gateway, c.gateway)
