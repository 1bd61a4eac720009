-- Lock keys of Execute.

-- name: KeyLock :exec
-- Takes transaction-level advisory locks, ordered by their numbers: the order is the same in every process, and in
-- users' own transactions that sort them.
select pg_advisory_xact_lock(k.number)
from (
    select distinct hashtextextended(u.key, u.tenant_id) as number
    from (select unnest(@tenants::integer[]) as tenant_id, unnest(@keys::text[]) as key) u
    order by 1
    offset 0
) k;
