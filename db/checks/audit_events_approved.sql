-- Every approved change of a setting has an approved request with the same requester, approver and request id.
select e.tenant_id, e.event_id, e.name, e.principal, e.approved_by, e.request_id
from audit_events e
where e.approved_by is not null and not exists (
    select from approval_requests a
    where a.tenant_id = e.tenant_id and a.state = 'approved' and a.principal = e.principal
        and a.decided_by = e.approved_by and a.decided_request_id = e.request_id
)
