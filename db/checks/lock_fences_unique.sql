-- No two locks have the same fence, and none has one that has not been drawn yet.
select f.tenant_id, f.name, f.fence,
    case when f.locks > 1 then 'another lock has it too' else 'it was not drawn yet' end as problem
from (
    select l.tenant_id, l.name, l.fence, count(*) over (partition by l.fence) as locks from lock_locks l
) f
where f.locks > 1 or f.fence > (select s.last_value from lock_fence_seq s)
