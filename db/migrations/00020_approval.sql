-- Requests that another principal approves before they are done, ADR 18. Locks nothing.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
set local role ledgerd_owner;

create table approval_requests (
    tenant_id          integer not null,
    approval_id        bigint not null,
    state              text collate "C" not null,
    operation          text collate "C" not null,
    request            bytea not null,
    details            jsonb,
    reason             text collate "C",
    principal          text collate "C" not null,
    key_id             text collate "C",
    request_id         text collate "C" not null,
    created_at         timestamptz not null,
    expires_at         timestamptz not null,
    decided_by         text collate "C",
    decided_key_id     text collate "C",
    decided_request_id text collate "C",
    decided_at         timestamptz,
    note               text collate "C",
    response           bytea,
    constraint approval_requests_pkey primary key (tenant_id, approval_id),
    constraint approval_requests_state_check check (state in ('open', 'approved', 'rejected')),
    constraint approval_requests_operation_check check (operation ~ '^[a-z_]+\.[a-z_]+$'),
    constraint approval_requests_request_check check (octet_length(request) between 1 and 1048576),
    constraint approval_requests_reason_check check (octet_length(reason) between 1 and 1000),
    constraint approval_requests_expires_at_check check (expires_at > created_at),
    constraint approval_requests_decided_check check ((state = 'open') = (decided_at is null)
        and (state = 'open') = (decided_by is null) and (state = 'open') = (decided_request_id is null)
        and (decided_at is not null or decided_key_id is null and note is null)),
    constraint approval_requests_decided_by_check check (state <> 'approved' or decided_by <> principal),
    constraint approval_requests_decided_at_check check (decided_at < expires_at),
    constraint approval_requests_note_check check (octet_length(note) between 1 and 1000),
    constraint approval_requests_response_check check ((response is not null) = (state = 'approved'))
) with (fillfactor = 80);
create index approval_requests_state_idx on approval_requests (tenant_id, state, approval_id);
comment on table approval_requests is
    'Requests that one principal made and another approved or rejected, once. An approved request ran in the commit '
    'that approved it. Kept for ever.';
comment on column approval_requests.tenant_id is 'Tenant.';
comment on column approval_requests.approval_id is
    'Id of the approval; approval_id >> 14 is the batch that recorded the request.';
comment on column approval_requests.state is
    'open: it can be approved until expires_at; approved: it was done; rejected: by another principal, or withdrawn.';
comment on column approval_requests.operation is 'Operation that is requested, such as ledger.reverse.';
comment on column approval_requests.request is
    'The request, as google.protobuf.Any. Auditors do not read it: it may hold personal data.';
comment on column approval_requests.details is
    'The request as JSON; null: it is about messages, orders, payments or sales, and may hold personal data.';
comment on column approval_requests.reason is 'Reason given by the requester; null: none.';
comment on column approval_requests.principal is 'Principal that requested it: the requester.';
comment on column approval_requests.key_id is 'API key of the requester; null: a client certificate or a token.';
comment on column approval_requests.request_id is 'X-Request-ID of the call that requested it.';
comment on column approval_requests.created_at is 'When it was requested.';
comment on column approval_requests.expires_at is 'From then on it can be neither approved nor rejected.';
comment on column approval_requests.decided_by is
    'Principal that approved or rejected it; null: neither. Only the requester withdraws: state rejected.';
comment on column approval_requests.decided_key_id is 'API key of decided_by; null: none was used.';
comment on column approval_requests.decided_request_id is
    'X-Request-ID of the call that rejected it. If it was approved: "approval." and its id, the request id of all its '
    'effects, which no caller can send.';
comment on column approval_requests.decided_at is 'When it was approved or rejected.';
comment on column approval_requests.note is 'Note of decided_by; null: none.';
comment on column approval_requests.response is
    'The response, as google.protobuf.Any, maybe compressed; null: it was not done. Auditors do not read it.';

-- +goose StatementBegin
create function approval_keep() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
    as $$
begin
    if old.state <> 'open' then
        raise exception 'request % is %, and a decision is final', old.approval_id, old.state using errcode = 'LD005';
    end if;
    if (to_jsonb(new) - '{state,decided_by,decided_key_id,decided_request_id,decided_at,note,response}'::text[])
            is distinct from
            (to_jsonb(old) - '{state,decided_by,decided_key_id,decided_request_id,decided_at,note,response}'::text[])
    then
        raise exception 'request % cannot change: only its decision is added', old.approval_id
            using errcode = 'LD005';
    end if;
    return new;
end
$$;
-- +goose StatementEnd
comment on function approval_keep is 'Trigger: refuses all changes of a request except its one decision.';
create trigger approval_requests_keep before update on approval_requests
    for each row execute function approval_keep();
create trigger approval_requests_append_only before delete or truncate on approval_requests
    for each statement execute function commit_append_only();

create policy tenants on approval_requests to ledgerd_app using (nullif(tenant_id <@ (
    select nullif(current_setting('ledgerd.tenants', true), '')::int4multirange
), false) is not null);
create policy administrators on approval_requests to ledgerd_admin using (true);
create policy auditors on approval_requests for select to ledgerd_audit using (true);
alter table approval_requests enable row level security;

grant select, insert on approval_requests to ledgerd_app;
grant update (state, decided_by, decided_key_id, decided_request_id, decided_at, note, response)
    on approval_requests to ledgerd_app;
grant select (tenant_id, approval_id, state, operation, details, reason, principal, key_id, request_id, created_at,
    expires_at, decided_by, decided_key_id, decided_request_id, decided_at, note) on approval_requests to ledgerd_audit;

create view audit.approvals as
select t.name as tenant, a.approval_id,
    case when a.state = 'open' and a.expires_at <= clock_timestamp() then 'expired'
        when a.state = 'rejected' and a.decided_by = a.principal then 'withdrawn' else a.state end as state,
    a.operation, a.details, a.reason, a.principal as requested_by, a.key_id, a.request_id, a.created_at, a.expires_at,
    a.decided_by, a.decided_key_id, a.decided_request_id, a.decided_at, a.note
from approval_requests a
left join access_tenants t on t.tenant_id = a.tenant_id;
comment on view audit.approvals is
    'Requests for approval, with requester and approver. Other views have the effects of an approved request under '
    'decided_request_id.';
comment on column audit.approvals.tenant is 'Name of the tenant.';
comment on column audit.approvals.approval_id is 'Id of the approval.';
comment on column audit.approvals.state is
    'open; approved: it was done; rejected; withdrawn: rejected by the requester; expired: not decided in time.';
comment on column audit.approvals.operation is 'Operation that is requested.';
comment on column audit.approvals.details is 'The request as JSON; null: it may hold personal data.';
comment on column audit.approvals.reason is 'Reason given by the requester.';
comment on column audit.approvals.requested_by is 'Principal that requested it.';
comment on column audit.approvals.key_id is 'API key of the requester; null: none was used.';
comment on column audit.approvals.request_id is 'X-Request-ID of the call that requested it.';
comment on column audit.approvals.created_at is 'When it was requested.';
comment on column audit.approvals.expires_at is 'From then on it can be neither approved nor rejected.';
comment on column audit.approvals.decided_by is 'Principal that approved or rejected it.';
comment on column audit.approvals.decided_key_id is 'API key of decided_by; null: none was used.';
comment on column audit.approvals.decided_request_id is
    'X-Request-ID of the call that rejected it. If it was approved: "approval." and its id, the request id of all its '
    'effects, which no caller can send.';
comment on column audit.approvals.decided_at is 'When it was approved or rejected.';
comment on column audit.approvals.note is 'Note of decided_by.';
grant select on audit.approvals to ledgerd_audit;
reset role;

-- +goose Down
drop view audit.approvals;
drop table approval_requests;
drop function approval_keep;
