-- A reversal moves exactly the opposite of what it reverses.
select coalesce(r.tenant_id, o.tenant_id) as tenant_id, coalesce(r.reverses_id, o.transfer_id) as reversed_id
from (
    select t.tenant_id, t.reverses_id, e.account_id, sum(e.amount) as moved
    from ledger_transfers t join ledger_entries e using (tenant_id, transfer_id)
    where t.reverses_id is not null group by t.tenant_id, t.reverses_id, e.account_id
) r
full join (
    select e.tenant_id, e.transfer_id, e.account_id, sum(e.amount) as moved
    from ledger_entries e
    where exists (select from ledger_transfers t where t.tenant_id = e.tenant_id and t.reverses_id = e.transfer_id)
    group by e.tenant_id, e.transfer_id, e.account_id
) o on o.tenant_id = r.tenant_id and o.transfer_id = r.reverses_id and o.account_id = r.account_id
where r.moved is distinct from -o.moved
