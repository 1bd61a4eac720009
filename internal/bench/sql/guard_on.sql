-- Enables the trigger of the baseline that checks sums.
alter table bench.ledger_entries enable trigger ledger_entries_balance;
