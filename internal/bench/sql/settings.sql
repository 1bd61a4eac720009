-- Current values of the settings that affect durability and speed.
select name, current_setting(name) from pg_settings
where name in ('fsync', 'synchronous_commit', 'full_page_writes', 'shared_buffers', 'max_wal_size', 'max_connections',
    'checkpoint_timeout', 'autovacuum', 'wal_compression', 'jit')
order by name
