-- Every request for approval has the time of its batch, or an earlier time if an account of the batch was ahead of the
-- clock. An approved request was approved before it expired, by another principal, in an Approve call with an API key
-- of that principal.
select a.tenant_id, a.approval_id,
    case when b.batch_id is null then 'no batch made it'
        when a.decided_by = a.principal then 'its requester approved it'
        when a.decided_at >= a.expires_at then 'it was too late'
        when a.decided_request_id is distinct from 'approval.' || a.approval_id then 'no Approve wrote it'
        when k.principal <> a.decided_by then 'the key is one of another principal' end as problem,
    a.created_at, b.recorded_at as created_at_expected
from approval_requests a
left join commit_batches b on b.batch_id = a.approval_id >> 14 and b.commands > 0
left join access_api_keys k on k.tenant_id = a.tenant_id and k.key_id = a.decided_key_id
where a.state = 'approved'
        and (a.decided_by is null or a.decided_by = a.principal or a.decided_at >= a.expires_at
            or a.decided_request_id is distinct from 'approval.' || a.approval_id or k.principal <> a.decided_by)
    or b.batch_id is null or b.recorded_at <> a.created_at
    and not (a.created_at < b.recorded_at and commit_time_taken(b.batch_id, b.recorded_at))
