-- Lock keys of Execute.

-- name: KeyLock :exec
-- Takes the advisory locks of keys, for the transaction, in the order of their numbers: the same in every
-- process, and in transactions of the user's own that take them sorted.
select pg_advisory_xact_lock(k.number)
from (
    select distinct hashtextextended(u.key, u.tenant_id) as number
    from (select unnest(@tenants::integer[]) as tenant_id, unnest(@keys::text[]) as key) u
    order by 1
    offset 0
) k;
