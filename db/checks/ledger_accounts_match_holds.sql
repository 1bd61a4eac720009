-- An account's held amount is the sum of the remaining amounts of its open holds, none of which expires before
-- next_expiry_at.
select a.tenant_id, a.account_id, a.code, a.asset, a.held, h.kept as held_expected, a.next_expiry_at, h.first_expiry_at
from ledger_accounts a
cross join lateral (
    select coalesce(sum(l.amount - l.captured), 0) as kept, min(l.expires_at) as first_expiry_at
    from ledger_holds l
    where l.tenant_id = a.tenant_id and l.account_id = a.account_id and l.state = 'held'
) h
where a.held <> h.kept
    or (h.first_expiry_at is not null and (a.next_expiry_at is null or a.next_expiry_at > h.first_expiry_at))
