-- The baseline without the service's guard.
alter table bench.ledger_entries disable trigger ledger_entries_balance;
