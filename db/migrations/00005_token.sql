-- Submit tokens: each lets one form be submitted once. Locks nothing.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
set local role ledgerd_owner;

create table token_submit_tokens (
    tenant_id        integer not null,
    token_hash       bytea not null,
    state            text collate "C" not null default 'open',
    subject          text collate "C",
    purpose          text collate "C",
    life_ms          bigint not null,
    survives_refusal boolean not null,
    principal        text collate "C" not null,
    request_id       text collate "C" not null,
    issued_at        timestamptz not null,
    expires_at       timestamptz not null,
    forget_at        timestamptz not null,
    spent_at         timestamptz,
    spent_by         text collate "C",
    spent_request_id text collate "C",
    operation        text collate "C",
    result           jsonb,
    constraint token_submit_tokens_pkey primary key (tenant_id, token_hash),
    constraint token_submit_tokens_token_hash_check check (octet_length(token_hash) = 32),
    constraint token_submit_tokens_state_check check (state in ('open', 'spent', 'refused')),
    constraint token_submit_tokens_spent_check check (
        case state
            when 'open' then num_nonnulls(spent_at, spent_by, spent_request_id, operation, result) = 0
            when 'refused' then num_nulls(spent_at, spent_by, spent_request_id, operation) = 0
                and result is null and not survives_refusal
            else num_nulls(spent_at, spent_by, spent_request_id, operation) = 0
        end),
    constraint token_submit_tokens_in_time_check check (spent_at >= issued_at and spent_at < expires_at),
    constraint token_submit_tokens_subject_check check (octet_length(subject) between 1 and 255),
    constraint token_submit_tokens_purpose_check check (octet_length(purpose) between 1 and 255),
    constraint token_submit_tokens_life_check check (life_ms between 1000 and 86400000),
    constraint token_submit_tokens_forget_check check (issued_at < expires_at and expires_at < forget_at),
    constraint token_submit_tokens_result_check check (octet_length(result::text) <= 4096)
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);
create index token_submit_tokens_forget_idx on token_submit_tokens (forget_at);
comment on table token_submit_tokens is 'Submit tokens, each for one form. A row past forget_at counts as deleted.';
comment on column token_submit_tokens.tenant_id is 'Tenant.';
comment on column token_submit_tokens.token_hash is
    'SHA-256 of the token. The token itself, which has 160 random bits, is not stored.';
comment on column token_submit_tokens.state is
    'open; spent: by a submit that succeeded; refused: by a submit that a business rule refused.';
comment on column token_submit_tokens.subject is
    'Owner of the form, such as user:1001: the call that spends the token must name the same. Null: not checked.';
comment on column token_submit_tokens.purpose is
    'Purpose of the form, such as order: the call that spends the token must name the same. Null: not checked.';
comment on column token_submit_tokens.life_ms is 'Its life in milliseconds, which the next token inherits.';
comment on column token_submit_tokens.survives_refusal is
    'True if a submit that a business rule refuses does not spend it.';
comment on column token_submit_tokens.principal is 'Principal that it was issued to.';
comment on column token_submit_tokens.request_id is
    'X-Request-ID of the call that issued it: IssueTokens, or a submit that asked for the next token.';
comment on column token_submit_tokens.issued_at is 'When it was issued.';
comment on column token_submit_tokens.expires_at is
    'When it expires, and can no longer be spent. A declined payment opens its token again, with a new life.';
comment on column token_submit_tokens.forget_at is
    'When the token becomes unknown and the cleaner may delete the row: an hour after expires_at, or a day if it '
    'was spent.';
comment on column token_submit_tokens.spent_at is 'When it was spent.';
comment on column token_submit_tokens.spent_by is 'Principal that spent it.';
comment on column token_submit_tokens.spent_request_id is 'X-Request-ID of the call that spent it.';
comment on column token_submit_tokens.operation is 'Operation that spent it, such as ledger.transfer.';
comment on column token_submit_tokens.result is
    'Resource that the call created, such as {"resource": "transfer", "id": "1", "biz_no": "order-1"}; null: none, '
    'or the call was refused.';
comment on index token_submit_tokens_forget_idx is 'For the cleaner.';

grant select, insert, delete on token_submit_tokens to ledgerd_app;
grant update (state, expires_at, forget_at, spent_at, spent_by, spent_request_id, operation, result)
    on token_submit_tokens to ledgerd_app;
grant select on token_submit_tokens to ledgerd_audit;

create view audit.submit_tokens as
select t.name as tenant, s.subject, s.purpose,
    case when s.state = 'open' and s.expires_at <= now() then 'expired' else s.state end as state,
    s.issued_at, s.expires_at, s.survives_refusal, s.principal, s.request_id,
    s.spent_at, s.spent_by, s.spent_request_id, s.operation, s.result, s.forget_at,
    encode(s.token_hash, 'hex') as sha256
from token_submit_tokens s
left join access_tenants t on t.tenant_id = s.tenant_id
where s.forget_at > now();
comment on view audit.submit_tokens is 'Submit tokens, with the call that issued each and the call that spent it.';
comment on column audit.submit_tokens.tenant is 'Name of the tenant.';
comment on column audit.submit_tokens.subject is 'Owner of the form; null: not checked.';
comment on column audit.submit_tokens.purpose is 'Purpose of the form; null: not checked.';
comment on column audit.submit_tokens.state is
    'open; expired; spent: by a submit that succeeded; refused: by a submit that a business rule refused.';
comment on column audit.submit_tokens.issued_at is 'When it was issued.';
comment on column audit.submit_tokens.expires_at is 'When it expires.';
comment on column audit.submit_tokens.survives_refusal is 'True if a refused submit does not spend it.';
comment on column audit.submit_tokens.principal is 'Principal that it was issued to.';
comment on column audit.submit_tokens.request_id is 'X-Request-ID of the call that issued it.';
comment on column audit.submit_tokens.spent_at is 'When it was spent.';
comment on column audit.submit_tokens.spent_by is 'Principal that spent it.';
comment on column audit.submit_tokens.spent_request_id is 'X-Request-ID of the call that spent it.';
comment on column audit.submit_tokens.operation is 'Operation that spent it, such as ledger.transfer.';
comment on column audit.submit_tokens.result is 'Resource that the call created.';
comment on column audit.submit_tokens.forget_at is 'When the cleaner may delete the row.';
comment on column audit.submit_tokens.sha256 is 'SHA-256 of the token: encode(sha256(''st_...''), ''hex'').';
grant select on audit.submit_tokens to ledgerd_audit;
reset role;

-- +goose Down
drop view audit.submit_tokens;
drop table token_submit_tokens;
