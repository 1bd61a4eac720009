-- No fence is ahead of its sequence: otherwise, as after a restore that left the sequence behind, a fence would be
-- drawn twice.
select w.tenant_id, w.scope, w.key, w.fence, s.last_value as drawn
from work_records w
cross join (select last_value from work_fence_seq) s
where w.fence > s.last_value
