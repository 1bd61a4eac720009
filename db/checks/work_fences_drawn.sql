-- No fence is ahead of the sequence that fences are drawn from: otherwise, as after a restore that left the
-- sequence behind, fences that were given out would come back.
select w.tenant_id, w.scope, w.key, w.fence, s.last_value as drawn
from work_records w
cross join (select last_value from work_fence_seq) s
where w.fence > s.last_value
