-- Every order has an instance of its machine with its number and its id. Its time is that of its batch, or earlier if
-- an account of the batch was ahead of the clock.
select o.tenant_id, o.order_no, o.order_id,
    case when i.instance_id is null then 'it has no instance' when b.batch_id is null then 'no batch made it' end
        as problem,
    o.created_at, b.recorded_at as created_at_expected
from order_orders o
left join lateral (
    select x.instance_id from machine_instances x
    where x.tenant_id = o.tenant_id and x.machine = o.machine and x.key = o.order_no and x.instance_id = o.order_id
    offset 0
) i on true
left join commit_batches b on b.batch_id = o.order_id >> 14 and b.commands > 0
where i.instance_id is null or b.batch_id is null or b.recorded_at <> o.created_at
    and not (o.created_at < b.recorded_at and commit_time_taken(b.batch_id, b.recorded_at))
