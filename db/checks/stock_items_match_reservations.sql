-- The reserved and sold units of an item are the sums over its reservations. No open reservation expires before the
-- earliest next_expiry_at of the item.
select i.tenant_id, i.item, i.reserved, r.reserved as reserved_expected, i.sold, r.sold as sold_expected,
    i.next_expiry_at, r.first_expiry_at
from (
    select tenant_id, item, sum(reserved) as reserved, sum(sold) as sold, min(next_expiry_at) as next_expiry_at
    from stock_items group by tenant_id, item
) i
cross join lateral (
    select coalesce(sum(l.quantity) filter (where l.state = 'reserved'), 0) as reserved,
        coalesce(sum(l.quantity - l.unsold) filter (where l.state = 'sold'), 0) as sold,
        min(l.expires_at) filter (where l.state = 'reserved') as first_expiry_at
    from stock_reservations l where l.tenant_id = i.tenant_id and l.item = i.item
) r
where i.reserved <> r.reserved or i.sold <> r.sold
    or (r.first_expiry_at is not null and (i.next_expiry_at is null or i.next_expiry_at > r.first_expiry_at))
