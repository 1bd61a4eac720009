-- Every transfer's id names a batch that committed at the transfer's time.
select t.tenant_id, t.transfer_id, t.recorded_at, b.committed_at
from ledger_transfers t
left join commit_batches b on b.batch_id = t.transfer_id >> 14
where b.batch_id is null or b.commands = 0 or b.committed_at <> t.recorded_at
