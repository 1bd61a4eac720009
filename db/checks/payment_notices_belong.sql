-- Every notice has its id in payment_notice_names, and every name there refers to a notice: by its id, or by an alias
-- of its console refund, which begins with unknown_refund/. A notice has the time of its batch, or an earlier time if
-- an account of the batch was ahead of the clock.
select coalesce(n.tenant_id, x.tenant_id) as tenant_id, coalesce(n.notice_id, x.notice_id) as notice_id,
    coalesce(n.gateway, x.gateway) as gateway, coalesce(n.notify_id, x.notify_id) as notify_id,
    case when n.notice_id is null then 'there is no such notice' when x.notice_id is null then 'it has no name'
        when b.batch_id is null then 'no batch made it' end as problem,
    n.recorded_at, b.recorded_at as recorded_at_expected
from payment_notices n
full join payment_notice_names x on x.tenant_id = n.tenant_id and x.notice_id = n.notice_id
    and x.gateway = n.gateway and (x.notify_id = n.notify_id or x.notify_id like 'unknown_refund/%')
left join commit_batches b on b.batch_id = n.notice_id >> 14 and b.commands > 0
where n.notice_id is null or x.notice_id is null or b.batch_id is null or b.recorded_at <> n.recorded_at
    and not (n.recorded_at < b.recorded_at and commit_time_taken(b.batch_id, b.recorded_at))
