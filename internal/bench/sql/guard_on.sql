-- The baseline with the service's guard.
alter table bench.ledger_entries enable trigger ledger_entries_balance;
