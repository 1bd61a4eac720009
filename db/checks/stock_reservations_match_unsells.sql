-- The unsold units of a reservation are the sum of its changes of the kind unsell.
select coalesce(r.tenant_id, c.tenant_id) as tenant_id, coalesce(r.item, c.item) as item,
    coalesce(r.reservation_no, c.reservation_no) as reservation_no, coalesce(r.unsold, 0) as unsold,
    coalesce(c.unsold, 0) as unsold_expected
from (select tenant_id, item, reservation_no, unsold from stock_reservations where unsold > 0) r
full join (
    select tenant_id, item, reservation_no, sum(quantity) as unsold from stock_changes
    where kind = 'unsell' group by tenant_id, item, reservation_no
) c on c.tenant_id = r.tenant_id and c.item = r.item and c.reservation_no = r.reservation_no
where r.unsold is distinct from c.unsold
