-- 10,000 instances of 5 machines that alternate between two states, without history. The session then plans as the
-- engine's do, and its commits do not wait for the disk.
insert into machine_moves select 1, 'm' || g, 1, f, t, false
from generate_series(0, 4) g, (values ('', 'ping'), ('ping', 'pong'), ('pong', 'ping')) v (f, t);
insert into machine_instances (tenant_id, machine, key, instance_id, version, state, came_from, revision, cause,
    created_at, changed_at)
select 1, 'm' || g % 5, 'order-' || g, g, 1, 'ping', '', 1, 'creation', now(), now() from generate_series(0, 9999) g;
analyze machine_instances, machine_moves;
set synchronous_commit = off;
set plan_cache_mode = force_generic_plan;
set enable_hashjoin = off;
set enable_mergejoin = off;
set enable_seqscan = off; set jit = off
