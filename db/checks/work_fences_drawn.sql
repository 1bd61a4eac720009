-- No fence is ahead of its sequence, as after a restore that left the sequence behind. Those of each epoch begin 2^34
-- higher.
select w.tenant_id, w.scope, w.key, w.fence, s.last_value as drawn
from work_records w
cross join work_fence_seq s
where w.fence & 17179869183 > s.last_value or w.fence >> 34 >= (select commit_epoch())
