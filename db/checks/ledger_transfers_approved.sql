-- Every transfer with the request id of an approval has the approved request. No caller can send such a request id.
select t.tenant_id, t.transfer_id, t.biz_no, t.request_id
from ledger_transfers t
where t.request_id like 'approval.%' and not exists (
    select from approval_requests a
    where a.tenant_id = t.tenant_id and a.decided_request_id = t.request_id and a.state = 'approved'
        and a.principal = t.principal and a.decided_request_id = 'approval.' || a.approval_id
)
