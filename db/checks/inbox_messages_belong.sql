-- Every inbox message has the time of its batch, or an earlier time if an account of the batch was ahead of the clock.
select m.tenant_id, m.consumer_group, m.message_id, m.part, m.inbox_id,
    case when b.batch_id is null then 'no batch made it' end as problem,
    m.received_at, b.recorded_at as received_at_expected
from inbox_messages m
left join commit_batches b on b.batch_id = m.inbox_id >> 14 and b.commands > 0
where b.batch_id is null or b.recorded_at <> m.received_at
    and not (m.received_at < b.recorded_at and commit_time_taken(b.batch_id, b.recorded_at))
