-- The captured amount of a hold is the amount that its captures debited from its account. The hold is in the state
-- captured exactly if nothing remains or a capture released the rest.
select h.tenant_id, h.hold_id, h.biz_no, h.account_id, h.state, h.amount, h.captured, c.moved as captured_expected
from ledger_holds h
cross join lateral (
    select coalesce(-sum(e.amount), 0) as moved, coalesce(bool_or(t.forms = 'release_rest'), false) as ended
    from ledger_transfers t
    join ledger_entries e on e.tenant_id = t.tenant_id and e.transfer_id = t.transfer_id
    where t.tenant_id = h.tenant_id and t.hold_id = h.hold_id and e.account_id = h.account_id
) c
where h.captured <> c.moved
    or h.captured > h.amount
    or (h.state = 'captured') <> (h.captured = h.amount or c.ended)
