-- Every reservation belongs to an item of its tenant, and its units came from segments of that item. Its time is that
-- of its batch, or earlier if an account of the batch was ahead of the clock.
select r.tenant_id, r.item, r.reservation_no, r.reservation_id,
    case when i.item is null then 'there is no such item'
        when r.segment >= i.segments or cardinality(r.draws) > i.segments then 'there is no such segment'
        when d.quantity <> r.quantity then 'its segments gave another number of units'
        when b.batch_id is null then 'no batch made it' end as problem,
    r.created_at, b.recorded_at as created_at_expected
from stock_reservations r
left join stock_items i on i.tenant_id = r.tenant_id and i.item = r.item and i.segment = 0
left join lateral (select sum(u) as quantity from unnest(r.draws) u where r.draws is not null) d on true
left join commit_batches b on b.batch_id = r.reservation_id >> 14 and b.commands > 0
where i.item is null or r.segment >= i.segments or cardinality(r.draws) > i.segments or d.quantity <> r.quantity
    or b.batch_id is null or b.recorded_at <> r.created_at
    and not (r.created_at < b.recorded_at and commit_time_taken(b.batch_id, b.recorded_at))
