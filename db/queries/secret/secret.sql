-- The root secret of a database.

-- name: RootGet :one
select key_id, sealed from secret_roots where root = 1;

-- name: RootInsert :exec
-- Stores the root secret, unless another process has done so.
insert into secret_roots (root, key_id, sealed) select 1, @key_id::text, @sealed::bytea on conflict do nothing;

-- name: RootReseal :execrows
-- Replaces the sealed form, unless another process has done so since it was read.
update secret_roots r set key_id = @key_id, sealed = @sealed, sealed_at = c.now
from (select clock_timestamp() as now) c
where r.root = 1 and r.key_id = @old_key_id;
