-- Accounts that a run touched, and those that are wrong. The run's entries must follow the entry before them without a
-- gap, and the account must have the version, balance and time of the last entry. If all earlier runs passed too, the
-- balance is the sum of all entries, and the version their number.
select count(*) as touched,
    count(*) filter (where
        a.version is distinct from n.highest
        or n.highest - n.lowest + 1 <> n.entries
        or a.balance is distinct from coalesce(p.balance_after, 0) + n.moved
        or a.last_entry_at is distinct from n.last_at
        or (n.lowest > 1 and p.version is null)) as wrong
from (
    select account_id, count(*) as entries, min(version) as lowest, max(version) as highest, sum(amount) as moved,
        max(recorded_at) as last_at
    from ledger_entries
    where tenant_id = $1 and transfer_id > $2
    group by account_id
) n
left join ledger_accounts a on a.tenant_id = $1 and a.account_id = n.account_id
left join ledger_entries p on p.tenant_id = $1 and p.account_id = n.account_id and p.version = n.lowest - 1
