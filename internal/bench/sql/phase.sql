-- The whole journal, at the end: transfers, entries, and accounts whose balance is not the sum of
-- their entries or whose version is not their count.
select (select count(*) from ledger_transfers) as transfers,
    coalesce(sum(e.entries), 0)::bigint as entries,
    count(*) filter (where a.account_id is null or a.balance <> coalesce(e.moved, 0)
    or a.version <> coalesce(e.entries, 0)) as wrong
from ledger_accounts a
full join (
    select tenant_id, account_id, count(*) as entries, sum(amount) as moved from ledger_entries group by tenant_id,
        account_id
) e using (tenant_id, account_id)
