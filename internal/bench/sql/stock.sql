-- By case: units sold by reservations; excess of these over the units that the item had, or counts as sold; and units
-- that items count as sold without a reservation.
select split_part(i.item, '/', 1), sum(coalesce(r.sold, 0))::bigint,
    sum(greatest(coalesce(r.sold, 0) - least(i.stocked, i.sold), 0))::bigint,
    sum(greatest(i.sold - coalesce(r.sold, 0), 0))::bigint
from (select item, sum(sold) as sold, sum(stocked) as stocked from stock_items group by item) i
left join (select item, sum(quantity - unsold) as sold from stock_reservations where state = 'sold' group by item) r
    using (item)
group by 1
