-- Every fence is the base of an epoch plus a number that the sequence has reached. A violation shows a restore that
-- left the sequence behind.
select w.tenant_id, w.scope, w.key, w.fence, s.last_value as drawn
from work_records w
cross join work_fence_seq s
where w.fence > (select max(e.base) from commit_epochs e) + s.last_value or not exists (
    select from commit_epochs e where w.fence - e.base between 1 and s.last_value
)
