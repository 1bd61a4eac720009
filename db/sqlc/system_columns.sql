-- For sqlc alone, never run: the system columns that queries name, which sqlc does not know.
alter table ledger_accounts add column ctid tid not null;
alter table ledger_holds add column ctid tid not null;
alter table commit_keys add column ctid tid not null;
