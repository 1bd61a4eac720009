-- Entries of an account form a chain: versions without gaps, balances that continue and add up, times that never
-- decrease.
select tenant_id, account_id, version, previous_version + 1 as version_expected, transfer_id,
    balance_before, previous_after as balance_before_expected,
    balance_after, balance_before + amount as balance_after_expected,
    recorded_at, previous_recorded_at
from (
    select tenant_id, account_id, version, transfer_id, amount, balance_before, balance_after, recorded_at,
        lag(version, 1, 0::bigint) over w as previous_version,
        lag(balance_after, 1, 0::numeric) over w as previous_after,
        lag(recorded_at) over w as previous_recorded_at
    from ledger_entries
    window w as (partition by tenant_id, account_id order by version)
) e
where version <> previous_version + 1
    or balance_before <> previous_after
    or balance_before + amount <> balance_after
    or recorded_at < previous_recorded_at
