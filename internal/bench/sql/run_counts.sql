-- Counts after a run: transfers newer than the newest before the run, transfers whose biz_no begins with the run's
-- name, and the number and the sum of the new entries.
select (select count(*) from ledger_transfers where tenant_id = $1 and transfer_id > $2) as newer,
    (select count(*) from ledger_transfers where tenant_id = $1 and biz_no >= $3 and biz_no < $3 || '~') as named,
    count(*) as entries,
    coalesce(sum(amount), 0)::text as total
from ledger_entries
where tenant_id = $1 and transfer_id > $2
