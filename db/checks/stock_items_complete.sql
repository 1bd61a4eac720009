-- Every item has details and all of its segments. The segments agree on their number and on the strategy.
select coalesce(i.tenant_id, d.tenant_id) as tenant_id, coalesce(i.item, d.item) as item,
    case when i.item is null then 'it has no counts' when d.item is null then 'it has no details'
        when i.strategies > 1 then 'its segments have several strategies' end as problem,
    i.found as segments, i.segments as segments_expected
from (
    select tenant_id, item, count(*) as found, max(segments) as segments, min(segments) as least,
        count(distinct strategy) as strategies
    from stock_items group by tenant_id, item
) i
full join stock_item_details d on d.tenant_id = i.tenant_id and d.item = i.item
where i.item is null or d.item is null or i.found <> i.segments or i.least <> i.segments or i.strategies > 1
