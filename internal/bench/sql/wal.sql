-- Fills WAL files of 16 MiB, for the next checkpoint to recycle. A server that has run for a while writes into recycled
-- files. A new server creates each file, and all commits wait some 60 ms for it.
select count(pg_logical_emit_message(false, 'bench', 'x')), count(pg_switch_wal()) from generate_series(1, %d)
