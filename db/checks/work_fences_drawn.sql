-- No fence is ahead of its sequence: otherwise, as after a restore that left the sequence behind, a fence would be
-- drawn twice. Those of each epoch begin 2^34 higher.
select w.tenant_id, w.scope, w.key, w.fence, s.drawn
from work_records w
cross join (select ((commit_epoch() - 1)::bigint << 34) + last_value as drawn from work_fence_seq) s
where w.fence > s.drawn
