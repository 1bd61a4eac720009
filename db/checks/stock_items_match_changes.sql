-- The stocked units of an item are those that changes put in, less those that adjustments took away.
select i.tenant_id, i.item, i.stocked, coalesce(c.stocked, 0) as stocked_expected
from (select tenant_id, item, sum(stocked) as stocked from stock_items group by tenant_id, item) i
left join (
    select tenant_id, item, sum(quantity) as stocked from stock_changes
    where kind in ('restock', 'adjust') group by tenant_id, item
) c on c.tenant_id = i.tenant_id and c.item = i.item
where i.stocked <> coalesce(c.stocked, 0)
