-- For sqlc alone, never run: the system columns and views that queries name, which sqlc does not know.
alter table ledger_accounts add column ctid tid not null, add column xmin xid not null;
alter table ledger_holds add column ctid tid not null;
alter table commit_batches add column xmin xid not null;
alter table commit_keys add column ctid tid not null;
alter table token_submit_tokens add column ctid tid not null;
alter table claim_keys add column ctid tid not null;
alter table work_records add column ctid tid not null;
alter table lock_locks add column ctid tid not null;
alter table lock_waiters add column ctid tid not null;
alter table inbox_messages add column ctid tid not null;
alter table inbox_contents add column ctid tid not null;
alter table machine_instances add column ctid tid not null;
alter table stock_items add column ctid tid not null, add column xmin xid not null;
alter table stock_reservations add column ctid tid not null;
alter table notify_endpoints add column ctid tid not null;
alter table notify_templates add column ctid tid not null;
alter table notify_codes add column ctid tid not null;
alter table notify_fingerprints add column ctid tid not null;
alter table notify_counters add column ctid tid not null;
alter table notify_queue add column ctid tid not null;
alter table payment_payments add column ctid tid not null;
alter table payment_transactions add column ctid tid not null;
alter table payment_refunds add column ctid tid not null;
alter table payment_console_refunds add column ctid tid not null;
alter table payment_flags add column ctid tid not null;
alter table payment_calls add column ctid tid not null;
alter table approval_requests add column ctid tid not null;
create table pg_locks (
    locktype text, database oid, classid oid, objid oid, objsubid smallint, virtualtransaction text, granted boolean
);
create table pg_database (oid oid, datname name);
