-- Entries of an account follow from one another: versions without gaps, balances that continue, time
-- that never falls.
select tenant_id, account_id, version, balance_before, previous_after, recorded_at, previous_at
from (
    select tenant_id, account_id, version, balance_before, recorded_at,
        lag(version, 1, 0::bigint) over w as previous_version,
        lag(balance_after, 1, 0::numeric) over w as previous_after,
        lag(recorded_at) over w as previous_at
    from ledger_entries
    window w as (partition by tenant_id, account_id order by version)
) e
where version <> previous_version + 1
    or balance_before <> previous_after
    or recorded_at < previous_at
