-- A reversal and the transfer that it reverses cancel each other out.
select t.tenant_id, t.transfer_id, t.biz_no, t.reverses_id, e.account_id, e.moved, 0 as moved_expected
from ledger_transfers t
cross join lateral (
    select l.account_id, sum(l.amount) as moved
    from ledger_entries l
    where l.tenant_id = t.tenant_id and l.transfer_id in (t.transfer_id, t.reverses_id)
    group by l.account_id
    having sum(l.amount) <> 0
) e
where t.reverses_id is not null
