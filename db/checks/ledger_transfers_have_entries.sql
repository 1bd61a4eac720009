-- Every transfer has two entries for each of its postings.
select t.tenant_id, t.transfer_id, count(e.version) as entries
from ledger_transfers t
left join ledger_entries e using (tenant_id, transfer_id)
group by t.tenant_id, t.transfer_id
having count(e.version) < 2 or count(e.version) <> 2 * (max(e.posting) + 1)
