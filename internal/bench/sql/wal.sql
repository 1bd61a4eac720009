-- Fills WAL files, of 16 MiB each, for the checkpoint after it to put by. A server that has run for a while
-- writes into files that are there; a new one makes each anew, and every commit waits for that, some
-- 60 ms a time.
select count(pg_logical_emit_message(false, 'bench', 'x')), count(pg_switch_wal()) from generate_series(1, %d)
