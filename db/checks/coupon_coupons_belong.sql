-- Every coupon has an instance of the machine "coupon" with its code and its id. Its time is that of its batch, or
-- earlier if an account of the batch was ahead of the clock. A claimed, locked or used coupon has an owner.
select c.tenant_id, c.code, c.coupon_id,
    case when i.instance_id is null then 'it has no instance' when b.batch_id is null then 'no batch made it'
        when i.state in ('claimed', 'locked', 'used') and i.owner is null then 'it has no owner' end as problem,
    c.created_at, b.recorded_at as created_at_expected
from coupon_coupons c
left join lateral (
    select x.instance_id, x.state, x.owner from machine_instances x
    where x.tenant_id = c.tenant_id and x.machine = 'coupon' and x.key = c.code and x.instance_id = c.coupon_id
    offset 0
) i on true
left join commit_batches b on b.batch_id = c.coupon_id >> 14 and b.commands > 0
where i.instance_id is null or i.state in ('claimed', 'locked', 'used') and i.owner is null
    or b.batch_id is null or b.recorded_at <> c.created_at
    and not (c.created_at < b.recorded_at and commit_time_taken(b.batch_id, b.recorded_at))
