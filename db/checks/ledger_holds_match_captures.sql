-- What a hold says was captured is what its captures moved out of its account.
select h.tenant_id, h.hold_id, h.captured, c.moved
from ledger_holds h
left join (
    select t.tenant_id, t.hold_id, -sum(e.amount) as moved
    from ledger_transfers t
    join ledger_holds k on k.tenant_id = t.tenant_id and k.hold_id = t.hold_id
    join ledger_entries e on e.tenant_id = t.tenant_id and e.transfer_id = t.transfer_id and e.account_id = k.account_id
    where t.hold_id is not null
    group by t.tenant_id, t.hold_id
) c using (tenant_id, hold_id)
where h.captured <> coalesce(c.moved, 0) or (h.state = 'captured' and h.captured <> h.amount)
