-- Every order has an instance of its machine with its number and its id, and the time of its batch; or an earlier one,
-- if the batch's time was that of an account ahead of the clock.
select o.tenant_id, o.order_no, o.order_id,
    case when i.instance_id is null then 'it has no instance' when b.batch_id is null then 'no batch made it' end
        as problem,
    o.created_at, b.committed_at as created_at_expected
from order_orders o
left join lateral (
    select x.instance_id from machine_instances x
    where x.tenant_id = o.tenant_id and x.machine = o.machine and x.key = o.order_no and x.instance_id = o.order_id
    offset 0
) i on true
left join commit_batches b on b.batch_id = o.order_id >> 14 and b.commands > 0
where i.instance_id is null or b.batch_id is null or b.committed_at <> o.created_at
    and not (o.created_at < b.committed_at and exists (
        select from generate_series((b.batch_id >> 16) + 1, (b.batch_id >> 16) - 100, -1) g -- 6.5 million batches
        cross join lateral (
            select from commit_batches t
            where t.batch_id >> 16 = g and t.committed_at = b.committed_at and t.batch_id <> b.batch_id
                and t.commands > 0
            order by t.committed_at
            limit 1
        ) t
    ))
