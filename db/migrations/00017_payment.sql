-- Payments through gateways. The state of a payment or a refund is that of its instance of the machine "payment" or
-- "refund", which is also its lock. Locks nothing.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
set local role ledgerd_owner;

create table payment_gateways (
    tenant_id  integer not null,
    gateway    text collate "C" not null,
    clearing   text collate "C" not null,
    suspense   text collate "C",
    payee      text collate "C",
    principal  text collate "C" not null,
    request_id text collate "C" not null,
    created_at timestamptz not null,
    changed_at timestamptz not null,
    constraint payment_gateways_pkey primary key (tenant_id, gateway),
    constraint payment_gateways_gateway_check check (gateway ~ '^[a-z0-9][a-z0-9._-]{0,31}$'),
    constraint payment_gateways_suspense_check check (suspense <> clearing and suspense <> payee)
);
comment on table payment_gateways is 'Gateways with their accounts in the ledger. Their keys are not in the database.';
comment on column payment_gateways.tenant_id is 'Tenant.';
comment on column payment_gateways.gateway is 'Name, as in the settings of the server.';
comment on column payment_gateways.clearing is 'Code of the account from which payments are posted.';
comment on column payment_gateways.suspense is
    'Code of the account for money that fits no order; null: such money is flagged, but not posted.';
comment on column payment_gateways.payee is
    'Code of the account that is paid for orders without a payee; null: such orders cannot be paid.';
comment on column payment_gateways.principal is 'Principal of the caller that last changed it.';
comment on column payment_gateways.request_id is 'X-Request-ID of that call.';
comment on column payment_gateways.created_at is 'When it was created.';
comment on column payment_gateways.changed_at is 'When it was created or last changed.';
grant select, insert on payment_gateways to ledgerd_app;
grant update (clearing, suspense, payee, principal, request_id, changed_at) on payment_gateways to ledgerd_app;
grant select on payment_gateways to ledgerd_audit;

create table payment_payments (
    tenant_id      integer not null,
    out_trade_no   text collate "C" not null,
    payment_id     bigint not null,
    order_no       text collate "C" not null,
    gateway        text collate "C" not null,
    pay_type       text collate "C" not null,
    attempt        smallint not null,
    asset          text collate "C" not null,
    scale          smallint not null,
    amount         numeric(38, 0) not null,
    payee          text collate "C" not null,
    description    text,
    payer          text,
    payer_ip       text,
    return_url     text,
    expires_at     timestamptz,
    token_hash     bytea,
    early          boolean not null default false,
    principal      text collate "C" not null,
    request_id     text collate "C" not null,
    created_at     timestamptz not null,
    transaction_id text collate "C",
    paid_at        timestamptz,
    credential     jsonb,
    failure_code   text,
    failure_text   text,
    messages       bytea,
    constraint payment_payments_pkey primary key (tenant_id, out_trade_no),
    constraint payment_payments_out_trade_no_check check (octet_length(out_trade_no) between 1 and 64),
    constraint payment_payments_attempt_check check (attempt >= 1),
    constraint payment_payments_scale_check check (scale between 0 and 18),
    constraint payment_payments_amount_check check (amount > 0),
    constraint payment_payments_token_check check (octet_length(token_hash) = 32),
    constraint payment_payments_paid_check check (paid_at is null or transaction_id is not null),
    constraint payment_payments_transaction_check check (octet_length(transaction_id) between 1 and 64),
    constraint payment_payments_messages_check check (octet_length(messages) <= 66000),
    constraint payment_payments_credential_check check (octet_length(credential::text) <= 65536)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
-- Partial: otherwise a plan made on an empty table could use them for a lookup by number. The first one is never
-- violated: a batch locks the instance of the order before it adds a payment.
create unique index payment_payments_order_key on payment_payments (tenant_id, order_no, gateway, pay_type, attempt)
    where order_no <> '';
create index payment_payments_id_idx on payment_payments (tenant_id, payment_id) where payment_id > 0;
comment on table payment_payments is
    'Payments of orders. The state is that of the instance of the machine "payment" with the same number.';
comment on column payment_payments.tenant_id is 'Tenant.';
comment on column payment_payments.out_trade_no is 'Number under which the gateway knows it.';
comment on column payment_payments.payment_id is
    'Id; payment_id >> 14 is the batch that created it or, if it is early, that recorded its first notice.';
comment on column payment_payments.order_no is 'Order that it pays.';
comment on column payment_payments.gateway is 'Gateway.';
comment on column payment_payments.pay_type is
    'Way to pay, by the name that the gateway has for it; empty: its default.';
comment on column payment_payments.attempt is
    'Number of the attempt among those with the same order, gateway and pay type, from 1.';
comment on column payment_payments.asset is 'Asset of the amount.';
comment on column payment_payments.scale is 'Decimals of the asset.';
comment on column payment_payments.amount is 'Amount to pay, in minor units.';
comment on column payment_payments.payee is 'Code of the account that is paid.';
comment on column payment_payments.description is
    'Text that the payer reads at the gateway; null: the number of the order.';
comment on column payment_payments.payer is 'Payer, by the gateway''s name; null: none.';
comment on column payment_payments.payer_ip is 'IP address of the payer; null: none.';
comment on column payment_payments.return_url is 'URL to which the gateway sends the payer afterwards; null: none.';
comment on column payment_payments.expires_at is
    'When the unpaid order ends, as known at the payment''s creation; null: never.';
comment on column payment_payments.early is
    'True if the gateway sent notices of it before it was created: notices with the effect unmatched may apply to it.';
comment on column payment_payments.token_hash is
    'SHA-256 of the submit token that the call spent, which a decline opens again; null: none.';
comment on column payment_payments.principal is 'Principal of the caller that created it.';
comment on column payment_payments.request_id is 'X-Request-ID of the call.';
comment on column payment_payments.created_at is 'When it was created: time of its batch.';
comment on column payment_payments.transaction_id is
    'The gateway''s number of the transaction, which may be in payment_transactions; null: not known.';
comment on column payment_payments.paid_at is 'When it was paid, by the gateway''s clock; null: not paid, or unknown.';
comment on column payment_payments.credential is
    'Values with which the payer''s client pays, by name; null: the gateway does not know it yet.';
comment on column payment_payments.failure_code is
    'Code of the last decline or refusal, by the gateway or the service; null: none.';
comment on column payment_payments.failure_text is 'Explanation of failure_code, for people; null: none.';
comment on column payment_payments.messages is
    'Messages to send in the commit that pays the order, encrypted under a key derived from the root secret; null: '
    'none, or the payment is decided.';
grant select, insert on payment_payments to ledgerd_app;
grant update (transaction_id, paid_at, credential, failure_code, failure_text, messages) on payment_payments
    to ledgerd_app;
grant select (tenant_id, out_trade_no, payment_id, order_no, gateway, pay_type, attempt, asset, scale, amount, payee,
    description, expires_at, principal, request_id, created_at, transaction_id, paid_at, failure_code, failure_text)
    on payment_payments to ledgerd_audit;

create table payment_transactions (
    tenant_id      integer not null,
    gateway        text collate "C" not null,
    transaction_id text collate "C" not null,
    out_trade_no   text collate "C" not null,
    notice_id      bigint not null,
    currency       text collate "C" not null,
    asset          text collate "C",
    scale          smallint not null,
    amount         numeric(38, 0) not null,
    account        text collate "C",
    refunding      numeric(38, 0) not null default 0,
    refunded       numeric(38, 0) not null default 0,
    recorded_at    timestamptz not null,
    constraint payment_transactions_pkey primary key (tenant_id, gateway, transaction_id),
    constraint payment_transactions_transaction_id_check check (octet_length(transaction_id) between 1 and 64),
    constraint payment_transactions_scale_check check (scale between 0 and 18),
    constraint payment_transactions_amount_check check (amount >= 0),
    constraint payment_transactions_account_check check (account is null or asset is not null),
    constraint payment_transactions_refunds_check check (
        refunding >= 0 and refunded >= 0 and refunding + refunded <= amount)
) with (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02);
create index payment_transactions_number_idx on payment_transactions (tenant_id, out_trade_no)
    where out_trade_no <> '';
create index payment_transactions_time_idx on payment_transactions (tenant_id, recorded_at, notice_id)
    where notice_id > 0;
comment on table payment_transactions is
    'Money that came through gateways, once for each transaction: a payer who paid twice has two.';
comment on column payment_transactions.tenant_id is 'Tenant.';
comment on column payment_transactions.gateway is 'Gateway.';
comment on column payment_transactions.transaction_id is 'The gateway''s number of it.';
comment on column payment_transactions.out_trade_no is 'Number of the payment, by the gateway.';
comment on column payment_transactions.notice_id is 'First notice of it; notice_id >> 14 is the batch.';
comment on column payment_transactions.currency is 'Currency, by the gateway.';
comment on column payment_transactions.asset is 'Asset of the currency; null: the settings name no existing asset.';
comment on column payment_transactions.scale is 'Decimals of the amount.';
comment on column payment_transactions.amount is 'Amount, in 10^-scale of the currency.';
comment on column payment_transactions.account is
    'Code of the account that has the money: posted under the biz_no pay/GATEWAY/TRANSACTION_ID, or moved there by the '
    'resolution of a flag; null: not posted.';
comment on column payment_transactions.refunding is 'Amount of the pending refunds.';
comment on column payment_transactions.refunded is 'Amount of the refunds that have succeeded.';
comment on column payment_transactions.recorded_at is 'When it was recorded: time of its batch.';
create trigger payment_transactions_kept before delete or truncate
    or update of tenant_id, gateway, transaction_id, out_trade_no, notice_id, currency, asset, scale, amount,
    recorded_at on payment_transactions
    for each statement execute function commit_append_only();
grant select, insert on payment_transactions to ledgerd_app;
grant update (account, refunding, refunded) on payment_transactions to ledgerd_app;
grant select on payment_transactions to ledgerd_audit;

create table payment_notice_names (
    tenant_id integer not null,
    gateway   text collate "C" not null,
    notify_id text collate "C" not null,
    notice_id bigint not null,
    constraint payment_notice_names_pkey primary key (tenant_id, gateway, notify_id),
    constraint payment_notice_names_notify_id_check check (octet_length(notify_id) between 1 and 256)
) with (autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000);
comment on table payment_notice_names is
    'The gateways'' own ids of notices, which deduplicate them, and aliases of refunds. Append-only.';
comment on column payment_notice_names.tenant_id is 'Tenant.';
comment on column payment_notice_names.gateway is 'Gateway.';
comment on column payment_notice_names.notify_id is
    'The gateway''s id of a callback; for an answer to a call, a text composed of the call and the answer; for a '
    'refund, an alias that begins with unknown_refund/; for a notice that matches no payment, kept/ and its id; for '
    'money under an id of another notice, reused_id/ with a hash and that id.';
comment on column payment_notice_names.notice_id is 'Id in payment_notices.';
create trigger payment_notice_names_append_only before update or delete or truncate on payment_notice_names
    for each statement execute function commit_append_only();
grant select, insert on payment_notice_names to ledgerd_app;
grant select on payment_notice_names to ledgerd_audit;

create table payment_notices (
    tenant_id      integer not null,
    notice_id      bigint not null,
    gateway        text collate "C" not null,
    notify_id      text collate "C" not null,
    callback       boolean not null,
    kind           text collate "C" not null,
    out_trade_no   text collate "C" not null,
    transaction_id text collate "C",
    refund_no      text collate "C",
    amount         text collate "C",
    currency       text collate "C",
    asset          text collate "C",
    fields         jsonb not null,
    effect        text collate "C" not null,
    detail         text,
    headers        jsonb,
    body           bytea not null,
    request_id     text collate "C" not null,
    occurred_at    timestamptz,
    recorded_at    timestamptz not null,
    constraint payment_notices_pkey primary key (tenant_id, notice_id),
    constraint payment_notices_kind_check check (kind in ('paid', 'pending', 'declined', 'closed', 'refunded',
        'refund_pending', 'refund_failed', 'refund_abnormal', 'other', 'unreadable')),
    constraint payment_notices_effect_check check (effect in ('applied', 'known', 'flagged', 'unmatched')),
    constraint payment_notices_body_check check (octet_length(body) <= 1048576)
) with (autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000);
-- Partial: otherwise a plan made on an empty table could use it for a lookup by id.
create index payment_notices_number_idx on payment_notices (tenant_id, out_trade_no, notice_id)
    where out_trade_no <> '';
comment on table payment_notices is
    'Verified notices of gateways, from callbacks and from answers to calls, with their effects. Append-only.';
comment on column payment_notices.tenant_id is 'Tenant.';
comment on column payment_notices.notice_id is 'Id; notice_id >> 14 is the batch that recorded it.';
comment on column payment_notices.gateway is 'Gateway.';
comment on column payment_notices.notify_id is 'As in payment_notice_names.';
comment on column payment_notices.callback is 'True if the gateway called back; false: it answered a call.';
comment on column payment_notices.kind is
    'paid, pending, declined, closed; of refunds refunded, refund_pending, refund_failed, refund_abnormal; other: '
    'about a subject that ledgerd does not follow; unreadable: signed, but not in the gateway''s format.';
comment on column payment_notices.out_trade_no is 'Number of the payment; empty: no known payment.';
comment on column payment_notices.transaction_id is
    'The gateway''s number of the transaction; null: the notice has none.';
comment on column payment_notices.refund_no is 'Number of the refund; null: the notice is about no refund.';
comment on column payment_notices.amount is 'Amount in major units; null: the notice has none.';
comment on column payment_notices.currency is 'Currency; null: the notice has none.';
comment on column payment_notices.asset is 'Asset of the currency by the settings; null: none.';
comment on column payment_notices.fields is
    'The whole notice as it was parsed: an unmatched notice is applied from it later.';
comment on column payment_notices.effect is
    'applied: it took effect. known: it changed nothing. flagged: see payment_flags. unmatched: there was no '
    'payment with its number.';
comment on column payment_notices.detail is 'Reason of the effect, for people; null: none.';
comment on column payment_notices.headers is 'Headers of the callback, without secrets; null: an answer.';
comment on column payment_notices.body is 'Body as it was received.';
comment on column payment_notices.request_id is 'X-Request-ID under which it was recorded.';
comment on column payment_notices.occurred_at is
    'When it happened, by the gateway''s clock; null: the notice has none.';
comment on column payment_notices.recorded_at is 'When it was recorded: time of its batch.';
create trigger payment_notices_append_only before update or delete or truncate on payment_notices
    for each statement execute function commit_append_only();
grant select, insert on payment_notices to ledgerd_app;
grant select on payment_notices to ledgerd_audit;

create table payment_refunds (
    tenant_id         integer not null,
    refund_no         text collate "C" not null,
    refund_id         bigint not null,
    out_trade_no      text collate "C" not null,
    gateway           text collate "C" not null,
    transaction_id    text collate "C" not null,
    currency          text collate "C" not null,
    asset             text collate "C",
    scale             smallint not null,
    amount            numeric(38, 0) not null,
    account           text collate "C",
    moves_order       boolean not null,
    flag_id           bigint,
    reason            text,
    principal         text collate "C" not null,
    request_id        text collate "C" not null,
    created_at        timestamptz not null,
    gateway_refund_id text collate "C",
    failure_code      text,
    failure_text      text,
    given             numeric(38, 0) not null default 0,
    booked            numeric(38, 0) not null default 0,
    noticed_at          timestamptz,
    outcome_flag_id      bigint,
    constraint payment_refunds_pkey primary key (tenant_id, refund_no),
    constraint payment_refunds_refund_no_check check (octet_length(refund_no) between 1 and 64),
    constraint payment_refunds_amount_check check (amount > 0),
    constraint payment_refunds_given_check check (given >= 0),
    constraint payment_refunds_booked_check check (booked in (0, amount))
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
create index payment_refunds_number_idx on payment_refunds (tenant_id, out_trade_no, refund_id)
    where out_trade_no <> '';
create index payment_refunds_id_idx on payment_refunds (tenant_id, refund_id) where refund_id > 0;
create index payment_refunds_time_idx on payment_refunds (tenant_id, created_at, refund_id) where refund_id > 0;
comment on table payment_refunds is
    'Refunds of transactions. The state is that of the instance of the machine "refund" with the same number.';
comment on column payment_refunds.tenant_id is 'Tenant.';
comment on column payment_refunds.refund_no is 'Number: chosen by the caller.';
comment on column payment_refunds.refund_id is 'Id; refund_id >> 14 is the batch that created it.';
comment on column payment_refunds.out_trade_no is 'Payment.';
comment on column payment_refunds.gateway is 'Gateway.';
comment on column payment_refunds.transaction_id is 'Transaction whose money it gives back.';
comment on column payment_refunds.currency is 'Currency of the transaction.';
comment on column payment_refunds.asset is 'Asset of the amount; null: the ledger has none.';
comment on column payment_refunds.scale is 'Decimals of the amount.';
comment on column payment_refunds.amount is 'Amount of the refund, in 10^-scale.';
comment on column payment_refunds.account is
    'Code of the account on which the amount is held under the biz_no refund/REFUND_NO; null: the money was not '
    'posted.';
comment on column payment_refunds.moves_order is 'True if it moved the order to the state refunding.';
comment on column payment_refunds.flag_id is
    'Flag that it resolves; the flag opens again if the refund fails; null: none.';
comment on column payment_refunds.reason is 'Reason, for the payer; null: none.';
comment on column payment_refunds.principal is 'Principal of the caller that requested it.';
comment on column payment_refunds.request_id is 'X-Request-ID of the call.';
comment on column payment_refunds.created_at is 'When it was requested: time of its batch.';
comment on column payment_refunds.gateway_refund_id is 'The gateway''s number of it; null: not known.';
comment on column payment_refunds.failure_code is
    'Code of its failure, by the gateway or the service; null: it did not fail.';
comment on column payment_refunds.failure_text is 'Explanation of failure_code, for people; null: none.';
comment on column payment_refunds.given is
    'Amount that the gateway gave back, by its latest notice, in 10^-scale; 0: none, or not known yet.';
comment on column payment_refunds.booked is
    'Amount that the ledger has booked as given back: all of it if the refund succeeded; 0: it has not succeeded, or '
    'its hold could not be captured.';
comment on column payment_refunds.noticed_at is
    'Time of the latest notice by the gateway''s clock, at most a minute after its receipt; null: notices had no time.';
comment on column payment_refunds.outcome_flag_id is
    'Latest flag about a difference between the amount that the gateway gave back and the ledger; null: none.';
grant select, insert on payment_refunds to ledgerd_app;
grant update (gateway_refund_id, failure_code, failure_text, given, booked, noticed_at, outcome_flag_id)
    on payment_refunds to ledgerd_app;
grant select on payment_refunds to ledgerd_audit;

create table payment_console_refunds (
    tenant_id         integer not null,
    console_id        bigint not null,
    gateway           text collate "C" not null,
    refund_no         text collate "C",
    gateway_refund_id text collate "C",
    out_trade_no      text collate "C" not null,
    transaction_id    text collate "C" not null,
    currency          text collate "C" not null,
    asset             text collate "C",
    scale             smallint not null,
    amount            numeric(38, 0) not null,
    failed            boolean not null,
    noticed_at           timestamptz,
    flag_id           bigint,
    recorded_at       timestamptz not null,
    constraint payment_console_refunds_pkey primary key (tenant_id, console_id),
    constraint payment_console_refunds_scale_check check (scale between 0 and 18),
    constraint payment_console_refunds_amount_check check (amount >= 0)
) with (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02);
-- Partial: otherwise a plan made on an empty table could use it for a lookup by id.
create index payment_console_refunds_transaction_idx
    on payment_console_refunds (tenant_id, gateway, transaction_id, out_trade_no) where out_trade_no <> '';
comment on table payment_console_refunds is
    'Refunds that no call requested, for example those made in the gateway''s console. Each is guarded by its own row '
    'lock.';
comment on column payment_console_refunds.tenant_id is 'Tenant.';
comment on column payment_console_refunds.console_id is
    'Id: that of its first notice. Its aliases in payment_notice_names have the same id.';
comment on column payment_console_refunds.gateway is 'Gateway.';
comment on column payment_console_refunds.refund_no is 'Its number, according to its first notice; null: none.';
comment on column payment_console_refunds.gateway_refund_id is
    'The gateway''s number of it, according to its first notice; null: none.';
comment on column payment_console_refunds.out_trade_no is 'Number of the payment, according to its first notice.';
comment on column payment_console_refunds.transaction_id is
    'Transaction that it refunds; empty: its first notice named none, and the payment had none.';
comment on column payment_console_refunds.currency is 'Currency; empty: the notices name none.';
comment on column payment_console_refunds.asset is 'Asset of the currency; null: the ledger has none.';
comment on column payment_console_refunds.scale is 'Decimals of the amount.';
comment on column payment_console_refunds.amount is
    'Amount of the refund, by its latest notice, in 10^-scale; 0: no notice had an amount.';
comment on column payment_console_refunds.failed is 'True if it gave nothing back, or the money came back.';
comment on column payment_console_refunds.noticed_at is
    'Time of the latest notice by the gateway''s clock, at most a minute after its receipt; null: notices had no time.';
comment on column payment_console_refunds.flag_id is 'Last flag about it; null: none.';
comment on column payment_console_refunds.recorded_at is 'When its first notice was recorded: time of that batch.';
grant select, insert on payment_console_refunds to ledgerd_app;
grant update (currency, asset, scale, amount, failed, noticed_at, flag_id) on payment_console_refunds to ledgerd_app;
grant select on payment_console_refunds to ledgerd_audit;

create table payment_flags (
    tenant_id        integer not null,
    flag_id          bigint not null,
    kind             text collate "C" not null,
    detail           text not null,
    gateway          text collate "C" not null,
    transaction_id   text collate "C" not null,
    out_trade_no     text collate "C" not null,
    order_no         text collate "C",
    currency         text collate "C" not null,
    asset            text collate "C",
    scale            smallint not null,
    amount           numeric(38, 0) not null,
    account          text collate "C",
    about_refund     text collate "C",
    about_console    bigint,
    request_id       text collate "C" not null,
    created_at       timestamptz not null,
    state            text collate "C" not null default 'open',
    resolution       text collate "C",
    target           text collate "C",
    refund_no        text collate "C",
    note             text,
    resolved_by      text collate "C",
    resolved_request_id text collate "C",
    resolved_at      timestamptz,
    constraint payment_flags_pkey primary key (tenant_id, flag_id),
    constraint payment_flags_kind_check check (kind in ('unknown_number', 'wrong_amount', 'wrong_asset',
        'wrong_merchant', 'late', 'second_transaction', 'order_refused', 'unknown_refund', 'refund_returned')),
    constraint payment_flags_about_check check (
        num_nonnulls(about_refund, about_console) = (kind in ('unknown_refund', 'refund_returned'))::integer),
    constraint payment_flags_state_check check (state in ('open', 'resolved')),
    constraint payment_flags_resolution_check check (resolution in ('accept', 'refund', 'write_off', 'withdrawn')),
    constraint payment_flags_withdrawn_check check (
        resolution <> 'withdrawn' or kind in ('unknown_refund', 'refund_returned')),
    constraint payment_flags_resolved_check check (
        case state when 'open' then num_nonnulls(resolution, target, refund_no, note, resolved_by, resolved_request_id,
            resolved_at) = 0
        else num_nulls(resolution, resolved_by, resolved_request_id, resolved_at) = 0 end),
    constraint payment_flags_target_check check ((resolution = 'write_off') = (target is not null)),
    constraint payment_flags_refund_check check ((resolution = 'refund') = (refund_no is not null))
) with (fillfactor = 80);
create index payment_flags_open_idx on payment_flags (tenant_id, flag_id) where state = 'open'; -- also to count them
create index payment_flags_number_idx on payment_flags (tenant_id, out_trade_no) where out_trade_no <> '';
comment on table payment_flags is 'Money that came, or went, and fits no order: a person decides what becomes of it.';
comment on column payment_flags.tenant_id is 'Tenant.';
comment on column payment_flags.flag_id is 'Id; flag_id >> 14 is the batch that raised it.';
comment on column payment_flags.kind is
    'unknown_number, wrong_amount, wrong_asset, wrong_merchant, late, second_transaction, order_refused, '
    'unknown_refund, refund_returned.';
comment on column payment_flags.detail is 'Explanation of the kind, for people.';
comment on column payment_flags.gateway is 'Gateway.';
comment on column payment_flags.transaction_id is
    'The gateway''s number of the transaction; empty: neither the notice nor the payment had one.';
comment on column payment_flags.out_trade_no is 'Number of the payment, by the gateway.';
comment on column payment_flags.order_no is 'Order of the payment; null: none is known.';
comment on column payment_flags.currency is 'Currency, by the gateway.';
comment on column payment_flags.asset is 'Asset of the currency; null: the ledger has none.';
comment on column payment_flags.scale is 'Decimals of the amount.';
comment on column payment_flags.amount is 'Amount, in 10^-scale.';
comment on column payment_flags.account is 'Code of the suspense account that has the money; null: not posted.';
comment on column payment_flags.about_refund is
    'Refund that the flag is about: the gateway gave back another amount than the ledger; null: none.';
comment on column payment_flags.about_console is
    'Console refund that the flag is about; null: none.';
comment on column payment_flags.request_id is 'X-Request-ID under which it was raised.';
comment on column payment_flags.created_at is 'When it was raised: time of its batch.';
comment on column payment_flags.state is 'open; resolved.';
comment on column payment_flags.resolution is
    'accept: the money paid the order. refund: a refund gives it back. write_off: it was moved to target. withdrawn: a '
    'later notice removed the reason of the flag.';
comment on column payment_flags.target is 'Code of the account to which it was written off.';
comment on column payment_flags.refund_no is 'Refund that gives it back.';
comment on column payment_flags.note is 'Note of the person who decided.';
comment on column payment_flags.resolved_by is 'Principal that resolved it.';
comment on column payment_flags.resolved_request_id is 'X-Request-ID of that call.';
comment on column payment_flags.resolved_at is 'When it was resolved.';
grant select, insert on payment_flags to ledgerd_app;
grant update (state, resolution, target, refund_no, note, resolved_by, resolved_request_id, resolved_at)
    on payment_flags to ledgerd_app;
grant select on payment_flags to ledgerd_audit;

create table payment_calls (
    tenant_id    integer not null,
    subject      text collate "C" not null,
    number       text collate "C" not null,
    gateway      text collate "C" not null,
    call         text collate "C" not null,
    attempts     integer not null default 0,
    next_call_at timestamptz not null,
    lease_expires_at  timestamptz,
    lease_nonce        bigint,
    last_code    text,
    last_text    text,
    constraint payment_calls_pkey primary key (tenant_id, subject, number),
    constraint payment_calls_subject_check check (subject in ('payment', 'refund')),
    constraint payment_calls_call_check check (call in ('submit', 'query', 'close', 'flag')),
    constraint payment_calls_lease_check check ((lease_expires_at is null) = (lease_nonce is null))
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
create index payment_calls_due_idx on payment_calls (tenant_id, gateway, next_call_at) where call <> 'flag';
create index payment_calls_flag_idx on payment_calls (next_call_at, tenant_id, number) where call = 'flag';
comment on table payment_calls is
    'Calls that are due at gateways: one row for each payment and refund that is not decided. Written under the lock '
    'of the instance of the payment, refund or order; leased by a worker, or by the call that created the payment or '
    'refund; rescheduled under the nonce of the lease.';
comment on column payment_calls.tenant_id is 'Tenant.';
comment on column payment_calls.subject is 'payment; refund.';
comment on column payment_calls.number is 'Number of the payment or refund.';
comment on column payment_calls.gateway is 'Gateway.';
comment on column payment_calls.call is
    'submit: create it at the gateway; query: ask for its state; close: prevent its payment; flag: no call, its money '
    'is flagged at next_call_at.';
comment on column payment_calls.attempts is 'Number of attempts since the call was scheduled.';
comment on column payment_calls.next_call_at is 'When it is due.';
comment on column payment_calls.lease_expires_at is 'End of a worker''s lease of the call; null: none.';
comment on column payment_calls.lease_nonce is
    'Random number of the attempt under that lease, which the worker''s later writes name.';
comment on column payment_calls.last_code is 'Error code of the last attempt; null: none.';
comment on column payment_calls.last_text is 'Error text of the last attempt; null: none.';
grant select, insert, update, delete on payment_calls to ledgerd_app;
grant select on payment_calls to ledgerd_audit;

-- Computed, not a column: the notice of a console refund may come before that of its transaction, name another payment,
-- and reach another server. No row lock orders the two, and none is needed if nothing is stored twice.
create view payment_money with (security_invoker = true) as
select x.*, least(10::numeric ^ 38 - 1, r.extra + f.extra)::numeric(38, 0) as extra_refunded
from payment_transactions x
cross join lateral (
    select coalesce(sum(greatest(y.given - case i.state when 'failed' then 0 else y.amount end, 0)), 0) as extra
    from payment_refunds y
    cross join lateral (
        select l.state from machine_instances l
        where l.tenant_id = y.tenant_id and l.machine = 'refund' and l.key = y.refund_no offset 0
    ) i
    where y.tenant_id = x.tenant_id and y.out_trade_no = x.out_trade_no and y.out_trade_no <> ''
        and y.gateway = x.gateway and y.transaction_id = x.transaction_id
) r
cross join lateral (
    select coalesce(sum(ceil(case when y.scale > x.scale then y.amount / 10::numeric ^ (y.scale - x.scale)::numeric
        else y.amount * 10::numeric ^ (x.scale - y.scale)::numeric end)), 0) as extra
    from (
        select l.amount, l.scale, l.currency from payment_console_refunds l
        where l.tenant_id = x.tenant_id and l.gateway = x.gateway and l.transaction_id = x.transaction_id
            and l.out_trade_no <> '' and not l.failed
        union all
        select l.amount, l.scale, l.currency from payment_console_refunds l
        where l.tenant_id = x.tenant_id and l.gateway = x.gateway and l.transaction_id = ''
            and l.out_trade_no = x.out_trade_no and l.out_trade_no <> '' and not l.failed
    ) y
    where y.currency in ('', x.currency)
) f;
comment on view payment_money is
    'Transactions with the amounts that their gateways gave back beyond succeeded refunds: the surplus of refunds, and '
    'console refunds in the same currency, rounded up. A console refund without a transaction came before its payment '
    'had one: it counts for every transaction of the payment.';
comment on column payment_money.tenant_id is 'As in payment_transactions.';
comment on column payment_money.gateway is 'As in payment_transactions.';
comment on column payment_money.transaction_id is 'As in payment_transactions.';
comment on column payment_money.out_trade_no is 'As in payment_transactions.';
comment on column payment_money.notice_id is 'As in payment_transactions.';
comment on column payment_money.currency is 'As in payment_transactions.';
comment on column payment_money.asset is 'As in payment_transactions.';
comment on column payment_money.scale is 'As in payment_transactions.';
comment on column payment_money.amount is 'As in payment_transactions.';
comment on column payment_money.account is 'As in payment_transactions.';
comment on column payment_money.refunding is 'As in payment_transactions.';
comment on column payment_money.refunded is 'As in payment_transactions.';
comment on column payment_money.recorded_at is 'As in payment_transactions.';
comment on column payment_money.extra_refunded is
    'Amount given back beyond the succeeded refunds, in 10^-scale, at most 10^38 - 1: it may exceed the amount.';
grant select on payment_money to ledgerd_app;
grant select on payment_money to ledgerd_audit;

create view audit.payments as
select t.name as tenant, p.out_trade_no, p.order_no, i.state, p.gateway, p.pay_type, p.attempt, p.asset,
    audit.decimal(p.amount, p.scale) as amount, p.transaction_id, p.paid_at,
    audit.decimal(x.refunding, x.scale) as refunding,
    audit.decimal(x.refunded + x.extra_refunded, x.scale) as refunded, x.account,
    p.payee, c.call as due_call, c.next_call_at, c.attempts, c.last_code, c.last_text, p.failure_code, p.failure_text,
    p.expires_at, i.changed_at, p.principal, p.request_id, p.created_at, p.payment_id
from payment_payments p
join machine_instances i on i.tenant_id = p.tenant_id and i.machine = 'payment' and i.key = p.out_trade_no
left join payment_money x on x.tenant_id = p.tenant_id and x.gateway = p.gateway
    and x.transaction_id = p.transaction_id
left join payment_calls c on c.tenant_id = p.tenant_id and c.subject = 'payment' and c.number = p.out_trade_no
left join access_tenants t on t.tenant_id = p.tenant_id;
comment on view audit.payments is 'Payments of orders, with the amounts given back, and the scheduled call.';
comment on column audit.payments.tenant is 'Name of the tenant.';
comment on column audit.payments.out_trade_no is 'Number under which the gateway knows it.';
comment on column audit.payments.order_no is 'Order.';
comment on column audit.payments.state is 'State.';
comment on column audit.payments.gateway is 'Gateway.';
comment on column audit.payments.pay_type is 'Way to pay; empty: the gateway''s default.';
comment on column audit.payments.attempt is 'Attempt, from 1.';
comment on column audit.payments.asset is 'Asset of the amounts.';
comment on column audit.payments.amount is 'Amount to pay.';
comment on column audit.payments.transaction_id is 'The gateway''s number of the transaction.';
comment on column audit.payments.paid_at is 'When it was paid, by the gateway''s clock.';
comment on column audit.payments.refunding is 'Amount of the pending refunds; null: nothing was paid.';
comment on column audit.payments.refunded is
    'Amount given back, console refunds included; null: nothing was paid.';
comment on column audit.payments.account is 'Account to which the money was posted; null: none.';
comment on column audit.payments.payee is 'Account that is to be paid.';
comment on column audit.payments.due_call is 'Scheduled call to the gateway; null: none.';
comment on column audit.payments.next_call_at is 'When it is due.';
comment on column audit.payments.attempts is 'Number of attempts at the call.';
comment on column audit.payments.last_code is 'Error code of the last attempt; null: none.';
comment on column audit.payments.last_text is 'Error text of the last attempt.';
comment on column audit.payments.failure_code is
    'Code of the last decline or refusal, by the gateway or the service.';
comment on column audit.payments.failure_text is 'Explanation of failure_code, for people.';
comment on column audit.payments.expires_at is 'When the order ends if it is not paid.';
comment on column audit.payments.changed_at is 'Time of its last move, or of its creation.';
comment on column audit.payments.principal is 'Principal that created it.';
comment on column audit.payments.request_id is 'X-Request-ID of the call that created it.';
comment on column audit.payments.created_at is 'When it was created.';
comment on column audit.payments.payment_id is 'Id; payment_id >> 14 is the batch that created it.';

create view audit.flags as
select t.name as tenant, f.flag_id, f.state, f.kind, f.detail, audit.decimal(f.amount, f.scale) as amount, f.currency,
    f.account, f.gateway, f.transaction_id, f.out_trade_no, f.order_no, f.created_at, f.resolution, f.target,
    f.refund_no, f.note, f.resolved_by, f.resolved_at, f.request_id, f.resolved_request_id
from payment_flags f
left join access_tenants t on t.tenant_id = f.tenant_id;
comment on view audit.flags is 'Money received or given back that fits no order.';
comment on column audit.flags.tenant is 'Name of the tenant.';
comment on column audit.flags.flag_id is 'Id; flag_id >> 14 is the batch that raised it.';
comment on column audit.flags.state is 'open: a person has to decide; resolved.';
comment on column audit.flags.kind is 'Kind, such as wrong_amount.';
comment on column audit.flags.detail is 'Explanation of the kind, for people.';
comment on column audit.flags.amount is 'Amount.';
comment on column audit.flags.currency is 'Currency.';
comment on column audit.flags.account is 'Suspense account that has the money; null: not posted.';
comment on column audit.flags.gateway is 'Gateway.';
comment on column audit.flags.transaction_id is 'The gateway''s number of the transaction.';
comment on column audit.flags.out_trade_no is 'Number of the payment.';
comment on column audit.flags.order_no is 'Order; null: none is known.';
comment on column audit.flags.created_at is 'When it was raised.';
comment on column audit.flags.resolution is 'Resolution.';
comment on column audit.flags.target is 'Account to which it was written off.';
comment on column audit.flags.refund_no is 'Refund that gives it back.';
comment on column audit.flags.note is 'Note of the person who decided.';
comment on column audit.flags.resolved_by is 'Principal that resolved it.';
comment on column audit.flags.resolved_at is 'When it was resolved.';
comment on column audit.flags.request_id is 'X-Request-ID under which it was raised.';
comment on column audit.flags.resolved_request_id is 'X-Request-ID of the call that resolved it.';

create view audit.notices as
select t.name as tenant, n.gateway, n.notify_id, n.callback, n.kind, n.effect, n.detail, n.out_trade_no,
    n.transaction_id, n.refund_no, n.amount, n.currency, n.occurred_at, n.recorded_at, n.request_id, n.headers,
    n.body, n.notice_id
from payment_notices n
left join access_tenants t on t.tenant_id = n.tenant_id;
comment on view audit.notices is
    'Notices of gateways, from callbacks and from answers to calls, with their effects.';
comment on column audit.notices.tenant is 'Name of the tenant.';
comment on column audit.notices.gateway is 'Gateway.';
comment on column audit.notices.notify_id is
    'The gateway''s id of it, or a text composed of the call and the answer.';
comment on column audit.notices.callback is 'True if the gateway called back; false: it answered a call.';
comment on column audit.notices.kind is 'Kind of the notice.';
comment on column audit.notices.effect is 'Effect: applied, known, flagged or unmatched.';
comment on column audit.notices.detail is 'Reason of the effect, for people.';
comment on column audit.notices.out_trade_no is 'Number of the payment.';
comment on column audit.notices.transaction_id is 'The gateway''s number of the transaction.';
comment on column audit.notices.refund_no is 'Number of the refund.';
comment on column audit.notices.amount is 'Amount.';
comment on column audit.notices.currency is 'Currency.';
comment on column audit.notices.occurred_at is 'When it happened, by the gateway''s clock.';
comment on column audit.notices.recorded_at is 'When it was recorded.';
comment on column audit.notices.request_id is 'X-Request-ID under which it was recorded.';
comment on column audit.notices.headers is 'Headers of the callback, without secrets.';
comment on column audit.notices.body is 'Body as it was received: convert_from(body, ''UTF8'').';
comment on column audit.notices.notice_id is 'Id; notice_id >> 14 is the batch that recorded it.';

create view audit.refunds as
select t.name as tenant, r.refund_no, r.out_trade_no, i.state, audit.decimal(r.amount, r.scale) as amount, r.currency,
    r.account, r.reason, r.gateway, r.transaction_id, r.gateway_refund_id, c.call as due_call, c.next_call_at,
    c.attempts, c.last_code, c.last_text, r.failure_code, r.failure_text, i.changed_at, r.principal, r.request_id,
    r.created_at, r.refund_id
from payment_refunds r
join machine_instances i on i.tenant_id = r.tenant_id and i.machine = 'refund' and i.key = r.refund_no
left join payment_calls c on c.tenant_id = r.tenant_id and c.subject = 'refund' and c.number = r.refund_no
left join access_tenants t on t.tenant_id = r.tenant_id;
comment on view audit.refunds is 'Refunds of payments, with the scheduled call.';
comment on column audit.refunds.tenant is 'Name of the tenant.';
comment on column audit.refunds.refund_no is 'Number.';
comment on column audit.refunds.out_trade_no is 'Payment.';
comment on column audit.refunds.state is 'State.';
comment on column audit.refunds.amount is 'Amount of the refund.';
comment on column audit.refunds.currency is 'Currency.';
comment on column audit.refunds.account is 'Account on which the amount is held; null: the money was not posted.';
comment on column audit.refunds.reason is 'Reason, for the payer.';
comment on column audit.refunds.gateway is 'Gateway.';
comment on column audit.refunds.transaction_id is 'Transaction whose money it gives back.';
comment on column audit.refunds.gateway_refund_id is 'The gateway''s number of it.';
comment on column audit.refunds.due_call is 'Scheduled call to the gateway; null: none.';
comment on column audit.refunds.next_call_at is 'When it is due.';
comment on column audit.refunds.attempts is 'Number of attempts at the call.';
comment on column audit.refunds.last_code is 'Error code of the last attempt; null: none.';
comment on column audit.refunds.last_text is 'Error text of the last attempt.';
comment on column audit.refunds.failure_code is 'Code of its failure, by the gateway or the service.';
comment on column audit.refunds.failure_text is 'Explanation of failure_code, for people.';
comment on column audit.refunds.changed_at is 'Time of its last move, or of its creation.';
comment on column audit.refunds.principal is 'Principal that requested it.';
comment on column audit.refunds.request_id is 'X-Request-ID of the call.';
comment on column audit.refunds.created_at is 'When it was requested.';
comment on column audit.refunds.refund_id is 'Id; refund_id >> 14 is the batch that created it.';
create view audit.console_refunds as
select t.name as tenant, r.out_trade_no, case when r.failed then 'failed' else 'succeeded' end as state,
    audit.decimal(r.amount, r.scale) as amount, r.currency, r.gateway, r.transaction_id, r.refund_no,
    r.gateway_refund_id, r.noticed_at, r.flag_id, r.recorded_at, r.console_id
from payment_console_refunds r
left join access_tenants t on t.tenant_id = r.tenant_id;
comment on view audit.console_refunds is
    'Refunds that no call requested, for example those made in the gateway''s console.';
comment on column audit.console_refunds.tenant is 'Name of the tenant.';
comment on column audit.console_refunds.out_trade_no is 'Number of the payment.';
comment on column audit.console_refunds.state is 'succeeded; failed: it gave nothing back, or the money came back.';
comment on column audit.console_refunds.amount is 'Amount of the refund; 0: no notice had an amount.';
comment on column audit.console_refunds.currency is 'Currency; empty: the notices name none.';
comment on column audit.console_refunds.gateway is 'Gateway.';
comment on column audit.console_refunds.transaction_id is 'Transaction that it refunds; empty: unknown.';
comment on column audit.console_refunds.refund_no is 'Number; null: none.';
comment on column audit.console_refunds.gateway_refund_id is 'The gateway''s number of it; null: none.';
comment on column audit.console_refunds.noticed_at is 'Time of the latest notice, by the gateway''s clock.';
comment on column audit.console_refunds.flag_id is 'Last flag about it; null: none.';
comment on column audit.console_refunds.recorded_at is 'When its first notice was recorded.';
comment on column audit.console_refunds.console_id is
    'Id; console_id >> 14 is the batch that recorded it. Also that of its first notice.';
grant select on audit.payments, audit.refunds, audit.console_refunds, audit.flags, audit.notices to ledgerd_audit;
reset role;

-- +goose Down
drop view audit.console_refunds;
drop view audit.refunds;
drop view audit.notices;
drop view audit.flags;
drop view audit.payments;
drop view payment_money;
drop table payment_calls;
drop table payment_flags;
drop table payment_console_refunds;
drop table payment_refunds;
drop table payment_notices;
drop table payment_notice_names;
drop table payment_transactions;
drop table payment_payments;
drop table payment_gateways;
