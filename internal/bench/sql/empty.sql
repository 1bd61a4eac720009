-- Deletes all rows of the journal and the runs, in both ledgers. The replica role disables the triggers that forbid it.
set session_replication_role = replica;
drop schema if exists bench cascade;
set search_path to public;
truncate ledger_assets, ledger_accounts, ledger_account_details, ledger_transfers, ledger_entries,
    ledger_holds, commit_keys, commit_batches cascade;
reset session_replication_role;
