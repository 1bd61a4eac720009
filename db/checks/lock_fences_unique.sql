-- No two locks have the same fence, and none has a fence that has not been drawn yet. Those of each epoch begin 2^34
-- higher.
select f.tenant_id, f.name, f.fence,
    case when f.locks > 1 then 'another lock has it too' else 'it was not drawn yet' end as problem
from (
    select l.tenant_id, l.name, l.fence, count(*) over (partition by l.fence) as locks from lock_locks l
) f
where f.locks > 1
    or f.fence > (select ((commit_epoch() - 1)::bigint << 34) + s.last_value from lock_fence_seq s)
