-- No two locks have the same fence, and every fence has been drawn: it is the base of an epoch plus a number that the
-- sequence has reached.
select f.tenant_id, f.name, f.fence,
    case when f.locks > 1 then 'another lock has it too' else 'it was not drawn yet' end as problem
from (
    select l.tenant_id, l.name, l.fence, count(*) over (partition by l.fence) as locks from lock_locks l
) f
cross join lock_fence_seq s
where f.locks > 1 or f.fence > (select max(e.base) from commit_epochs e) + s.last_value or not exists (
    select from commit_epochs e where f.fence - e.base between 1 and s.last_value
)
