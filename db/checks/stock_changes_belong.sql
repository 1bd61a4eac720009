-- Every change belongs to an item and has its number. Its time is that of its batch, or earlier if an account of the
-- batch was ahead of the clock.
select coalesce(c.tenant_id, n.tenant_id) as tenant_id, coalesce(c.item, n.item) as item,
    coalesce(c.change_no, n.change_no) as change_no, coalesce(c.change_id, n.change_id) as change_id,
    case when c.change_id is null then 'there is no such change' when n.change_id is null then 'its number is missing'
        when i.item is null then 'there is no such item' when b.batch_id is null then 'no batch made it' end as problem,
    c.changed_at, b.recorded_at as changed_at_expected
from stock_changes c
full join stock_change_names n on n.tenant_id = c.tenant_id and n.item = c.item and n.change_no = c.change_no
    and n.change_id = c.change_id
left join stock_items i on i.tenant_id = c.tenant_id and i.item = c.item and i.segment = 0
left join commit_batches b on b.batch_id = c.change_id >> 14 and b.commands > 0
where c.change_id is null or n.change_id is null or i.item is null or b.batch_id is null
    or b.recorded_at <> c.changed_at
    and not (c.changed_at < b.recorded_at and commit_time_taken(b.batch_id, b.recorded_at))
