-- What an account holds is what its open holds still keep, and none of them lapses before next_lapse_at.
select a.tenant_id, a.account_id, a.code, a.asset, a.held, h.kept, a.next_lapse_at, h.first_lapse
from ledger_accounts a
left join (
    select tenant_id, account_id, sum(amount - captured) as kept, min(expires_at) as first_lapse
    from ledger_holds where state = 'held' group by tenant_id, account_id
) h using (tenant_id, account_id)
where a.held <> coalesce(h.kept, 0)
    or (h.first_lapse is not null and (a.next_lapse_at is null or a.next_lapse_at > h.first_lapse))
