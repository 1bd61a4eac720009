-- Statements on payments, in batches. Arrays have the same length; n is a position in them, from 1. They have no nulls:
-- 0, the empty text and the zero time mean null. The row lock of an instance guards the rows of its payment or order.
-- So only the statements on gateways, console refunds and calls lock rows.

-- name: GatewayLock :many
-- Locks gateways in the order of the arrays, which callers sort by tenant and gateway.
select u.n::integer as n, g.clearing, g.suspense, g.payee
from (
    select generate_subscripts(@gateways::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@gateways::text[]) as gateway
) u
cross join lateral (
    select l.* from payment_gateways l where l.tenant_id = u.tenant_id and l.gateway = u.gateway
    offset 0 for no key update
) g;

-- name: GatewayLookup :many
-- Reads gateways without locks: for payments, the committed values are enough.
select u.n::integer as n, g.clearing, g.suspense, g.payee
from (
    select generate_subscripts(@gateways::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@gateways::text[]) as gateway
) u
cross join lateral (
    select l.* from payment_gateways l where l.tenant_id = u.tenant_id and l.gateway = u.gateway offset 0
) g;

-- name: GatewayPut :exec
-- Creates or changes a gateway, which is locked if it exists.
insert into payment_gateways (tenant_id, gateway, clearing, suspense, payee, principal, request_id, created_at,
    changed_at)
select @tenant_id::integer, @gateway::text, @clearing::text, nullif(@suspense::text, ''), nullif(@payee::text, ''),
    @principal::text, @request_id::text, @now::timestamptz, @now::timestamptz
on conflict (tenant_id, gateway) do update
set clearing = excluded.clearing, suspense = excluded.suspense, payee = excluded.payee, principal = excluded.principal,
    request_id = excluded.request_id, changed_at = excluded.changed_at;

-- name: PaymentLookup :many
-- Payments by number.
select u.n::integer as n, p.payment_id, p.order_no, p.gateway, p.pay_type, p.attempt, p.asset, p.scale, p.amount,
    p.payee, p.description, p.payer, p.payer_ip, p.return_url, p.expires_at, p.token_hash, p.early, p.principal,
    p.request_id, p.created_at, p.transaction_id, p.paid_at, p.credential, p.failure_code, p.failure_text
from (
    select generate_subscripts(@out_trade_nos::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@out_trade_nos::text[]) as out_trade_no
) u
cross join lateral (
    select l.* from payment_payments l where l.tenant_id = u.tenant_id and l.out_trade_no = u.out_trade_no offset 0
) p;

-- name: PaymentMessages :many
-- Messages to send when payments succeed. They do not change until then.
select u.n::integer as n, p.messages
from (
    select generate_subscripts(@out_trade_nos::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@out_trade_nos::text[]) as out_trade_no
) u
cross join lateral (
    select l.messages from payment_payments l
    where l.tenant_id = u.tenant_id and l.out_trade_no = u.out_trade_no and l.messages is not null offset 0
) p;

-- name: PaymentOfOrder :many
-- Payments of orders, and whether each has a recorded transaction: the newest attempt of each gateway and pay type, and
-- all with a transaction id.
select u.n::integer as n, p.out_trade_no, p.gateway, p.pay_type, p.attempt, coalesce(x.paid, false)::boolean as paid
from (
    select generate_subscripts(@order_nos::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@order_nos::text[]) as order_no
) u
cross join lateral (
    select l.*, row_number() over (partition by l.gateway, l.pay_type order by l.attempt desc) as age
    from payment_payments l
    where l.tenant_id = u.tenant_id and l.order_no = u.order_no and l.order_no <> ''
    offset 0
) p
left join lateral (
    select true as paid from payment_transactions t
    where t.tenant_id = u.tenant_id and t.gateway = p.gateway and t.transaction_id = p.transaction_id offset 0
) x on true
where p.age = 1 or p.transaction_id is not null
order by u.n, p.age;

-- name: PaymentInsert :exec
-- Inserts payments in the order of the arrays, which callers sort.
insert into payment_payments (tenant_id, out_trade_no, payment_id, order_no, gateway, pay_type, attempt, asset, scale,
    amount, payee, description, payer, payer_ip, return_url, expires_at, token_hash, early, principal, request_id,
    created_at, transaction_id, paid_at, messages)
select u.tenant_id, u.out_trade_no, u.payment_id, u.order_no, u.gateway, u.pay_type, u.attempt, u.asset, u.scale,
    u.amount, u.payee, nullif(u.description, ''), nullif(u.payer, ''), nullif(u.payer_ip, ''),
    nullif(u.return_url, ''), nullif(u.expires_at, '0001-01-01 00:00:00+00'), nullif(u.token_hash, ''), u.early,
    u.principal, u.request_id, @now::timestamptz, nullif(u.transaction_id, ''),
    nullif(u.paid_at, '0001-01-01 00:00:00+00'), nullif(u.messages, '')
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@out_trade_nos::text[]) as out_trade_no,
        unnest(@payment_ids::bigint[]) as payment_id, unnest(@order_nos::text[]) as order_no,
        unnest(@gateways::text[]) as gateway, unnest(@pay_types::text[]) as pay_type,
        unnest(@attempts::smallint[]) as attempt, unnest(@assets::text[]) as asset,
        unnest(@scales::smallint[]) as scale, unnest(@amounts::numeric[]) as amount,
        unnest(@payees::text[]) as payee, unnest(@descriptions::text[]) as description,
        unnest(@payers::text[]) as payer, unnest(@payer_ips::text[]) as payer_ip,
        unnest(@return_urls::text[]) as return_url, unnest(@expires_at::timestamptz[]) as expires_at,
        unnest(@token_hashes::bytea[]) as token_hash, unnest(@earlies::boolean[]) as early,
        unnest(@principals::text[]) as principal, unnest(@request_ids::text[]) as request_id,
        unnest(@transaction_ids::text[]) as transaction_id, unnest(@paid_at::timestamptz[]) as paid_at,
        unnest(@messages::bytea[]) as messages
) u;

-- name: PaymentUpdate :exec
-- Updates the columns of payments that can change. Rows are found by their keys.
with changed as (
    update payment_payments p
    set transaction_id = nullif(y.transaction_id, ''), paid_at = nullif(y.paid_at, '0001-01-01 00:00:00+00'),
        credential = y.credential, failure_code = nullif(y.failure_code, ''), failure_text = nullif(y.failure_text, ''),
        messages = case when not y.decided then p.messages end
    from (
        select l.ctid as tid, u.*
        from (
            select unnest(@tenants::integer[]) as tenant_id, unnest(@out_trade_nos::text[]) as out_trade_no,
                unnest(@transaction_ids::text[]) as transaction_id, unnest(@paid_at::timestamptz[]) as paid_at,
                unnest(@credentials::jsonb[]) as credential, unnest(@failure_codes::text[]) as failure_code,
                unnest(@failure_texts::text[]) as failure_text, unnest(@decided::boolean[]) as decided
        ) u
        cross join lateral (
            select x.ctid from payment_payments x
            where x.tenant_id = u.tenant_id and x.out_trade_no = u.out_trade_no
            offset 0
        ) l
    ) y
    where p.ctid = y.tid
    returning 1
)
select commit_expect(count(*), cardinality(@out_trade_nos::text[])) from changed;

-- name: TransactionLookup :many
select u.n::integer as n, x.out_trade_no, x.notice_id, x.currency, x.asset, x.scale, x.amount, x.account, x.refunding,
    x.refunded, x.extra_refunded
from (
    select generate_subscripts(@transaction_ids::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@gateways::text[]) as gateway, unnest(@transaction_ids::text[]) as transaction_id
) u
cross join lateral (
    select l.* from payment_money l
    where l.tenant_id = u.tenant_id and l.gateway = u.gateway and l.transaction_id = u.transaction_id offset 0
) x;

-- name: TransactionInsert :exec
-- Inserts transactions in the order of the arrays, which callers sort.
insert into payment_transactions (tenant_id, gateway, transaction_id, out_trade_no, notice_id, currency, asset, scale,
    amount, account, refunding, refunded, recorded_at)
select u.tenant_id, u.gateway, u.transaction_id, u.out_trade_no, u.notice_id, u.currency, nullif(u.asset, ''), u.scale,
    u.amount, nullif(u.account, ''), u.refunding, u.refunded, @now::timestamptz
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@gateways::text[]) as gateway,
        unnest(@transaction_ids::text[]) as transaction_id, unnest(@out_trade_nos::text[]) as out_trade_no,
        unnest(@notice_ids::bigint[]) as notice_id, unnest(@currencies::text[]) as currency,
        unnest(@assets::text[]) as asset, unnest(@scales::smallint[]) as scale, unnest(@amounts::numeric[]) as amount,
        unnest(@accounts::text[]) as account, unnest(@refunding::numeric[]) as refunding,
        unnest(@refunded::numeric[]) as refunded
) u;

-- name: TransactionUpdate :exec
-- Updates the accounts of transactions, and the sums of their refunds. Rows are found by their keys.
with changed as (
    update payment_transactions t
    set account = nullif(y.account, ''), refunding = y.refunding, refunded = y.refunded
    from (
        select l.ctid as tid, u.*
        from (
            select unnest(@tenants::integer[]) as tenant_id, unnest(@gateways::text[]) as gateway,
                unnest(@transaction_ids::text[]) as transaction_id, unnest(@accounts::text[]) as account,
                unnest(@refunding::numeric[]) as refunding, unnest(@refunded::numeric[]) as refunded
        ) u
        cross join lateral (
            select x.ctid from payment_transactions x
            where x.tenant_id = u.tenant_id and x.gateway = u.gateway and x.transaction_id = u.transaction_id
            offset 0
        ) l
    ) y
    where t.ctid = y.tid
    returning 1
)
select commit_expect(count(*), cardinality(@transaction_ids::text[])) from changed;

-- name: NoticeLookup :many
-- Notices that were recorded before, with their effects and what they report.
select u.n::integer as n, i.notice_id, i.effect, i.kind, i.out_trade_no,
    coalesce(i.transaction_id, '')::text as transaction_id, coalesce(i.amount, '')::text as amount,
    coalesce(i.currency, '')::text as currency
from (
    select generate_subscripts(@notify_ids::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@gateways::text[]) as gateway, unnest(@notify_ids::text[]) as notify_id
) u
cross join lateral (
    select x.notice_id, x.effect, x.kind, x.out_trade_no, x.transaction_id, x.amount, x.currency
    from payment_notice_names l
    cross join lateral (
        select y.notice_id, y.effect, y.kind, y.out_trade_no, y.transaction_id, y.amount, y.currency
        from payment_notices y
        where y.tenant_id = l.tenant_id and y.notice_id = l.notice_id offset 0
    ) x
    where l.tenant_id = u.tenant_id and l.gateway = u.gateway and l.notify_id = u.notify_id
    offset 0
) i;

-- name: NoticeUnknown :many
-- Notices that came before their payments and whose money is not recorded yet, oldest first, up to a limit for each
-- payment.
select u.n::integer as n, i.notice_id, i.notify_id, i.gateway, i.asset, i.fields
from (
    select generate_subscripts(@out_trade_nos::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@out_trade_nos::text[]) as out_trade_no
) u
cross join lateral (
    select l.notice_id, l.notify_id, l.gateway, l.asset, l.fields from payment_notices l
    where l.tenant_id = u.tenant_id and l.out_trade_no = u.out_trade_no and l.out_trade_no <> ''
        and l.effect = 'unmatched' and ( -- not an anti-join, which on an empty table would read all transactions
            select count(*) from payment_transactions t
            where t.tenant_id = l.tenant_id and t.gateway = l.gateway and t.transaction_id = l.transaction_id
        ) = 0
    order by l.tenant_id, l.out_trade_no, l.notice_id
    limit @most::integer
) i;

-- name: NoticeNameInsert :exec
-- Inserts names of notices in the order of the arrays, which callers sort.
insert into payment_notice_names (tenant_id, gateway, notify_id, notice_id)
select unnest(@tenants::integer[]), unnest(@gateways::text[]), unnest(@notify_ids::text[]),
    unnest(@notice_ids::bigint[]);

-- name: NoticeInsert :exec
insert into payment_notices (tenant_id, notice_id, gateway, notify_id, callback, kind, out_trade_no, transaction_id,
    refund_no, amount, currency, asset, fields, effect, detail, headers, body, request_id, occurred_at, recorded_at)
select u.tenant_id, u.notice_id, u.gateway, u.notify_id, u.callback, u.kind, u.out_trade_no,
    nullif(u.transaction_id, ''), nullif(u.refund_no, ''), nullif(u.amount, ''), nullif(u.currency, ''),
    nullif(u.asset, ''), u.fields, u.effect, nullif(u.detail, ''), u.headers, u.body, u.request_id,
    nullif(u.occurred_at, '0001-01-01 00:00:00+00'), @now::timestamptz
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@notice_ids::bigint[]) as notice_id,
        unnest(@gateways::text[]) as gateway, unnest(@notify_ids::text[]) as notify_id,
        unnest(@callbacks::boolean[]) as callback, unnest(@kinds::text[]) as kind,
        unnest(@out_trade_nos::text[]) as out_trade_no, unnest(@transaction_ids::text[]) as transaction_id,
        unnest(@refund_nos::text[]) as refund_no, unnest(@amounts::text[]) as amount,
        unnest(@currencies::text[]) as currency, unnest(@assets::text[]) as asset, unnest(@fields::jsonb[]) as fields,
        unnest(@effects::text[]) as effect, unnest(@details::text[]) as detail,
        unnest(@headers::jsonb[]) as headers, unnest(@bodies::bytea[]) as body,
        unnest(@request_ids::text[]) as request_id, unnest(@occurred_at::timestamptz[]) as occurred_at
) u;

-- name: RefundLookup :many
-- Refunds by number.
select u.n::integer as n, r.refund_id, r.out_trade_no, r.gateway, r.transaction_id, r.currency, r.asset, r.scale,
    r.amount, r.account, r.moves_order, r.flag_id, r.reason, r.principal, r.request_id, r.created_at,
    r.gateway_refund_id, r.failure_code, r.failure_text, r.given, r.booked,
    r.noticed_at, r.outcome_flag_id
from (
    select generate_subscripts(@refund_nos::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@refund_nos::text[]) as refund_no
) u
cross join lateral (
    select l.* from payment_refunds l where l.tenant_id = u.tenant_id and l.refund_no = u.refund_no offset 0
) r;

-- name: RefundInsert :exec
-- Inserts refunds in the order of the arrays, which callers sort.
insert into payment_refunds (tenant_id, refund_no, refund_id, out_trade_no, gateway, transaction_id, currency, asset,
    scale, amount, account, moves_order, flag_id, reason, principal, request_id, created_at)
select u.tenant_id, u.refund_no, u.refund_id, u.out_trade_no, u.gateway, u.transaction_id, u.currency,
    nullif(u.asset, ''), u.scale, u.amount, nullif(u.account, ''), u.moves_order, nullif(u.flag_id, 0),
    nullif(u.reason, ''), u.principal, u.request_id, @now::timestamptz
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@refund_nos::text[]) as refund_no,
        unnest(@refund_ids::bigint[]) as refund_id, unnest(@out_trade_nos::text[]) as out_trade_no,
        unnest(@gateways::text[]) as gateway, unnest(@transaction_ids::text[]) as transaction_id,
        unnest(@currencies::text[]) as currency, unnest(@assets::text[]) as asset,
        unnest(@scales::smallint[]) as scale, unnest(@amounts::numeric[]) as amount,
        unnest(@accounts::text[]) as account, unnest(@moves_order::boolean[]) as moves_order,
        unnest(@flag_ids::bigint[]) as flag_id, unnest(@reasons::text[]) as reason,
        unnest(@principals::text[]) as principal,
        unnest(@request_ids::text[]) as request_id
) u;

-- name: RefundUpdate :exec
-- Updates the columns of refunds that can change. Rows are found by their keys.
with changed as (
    update payment_refunds r
    set gateway_refund_id = nullif(y.gateway_refund_id, ''), failure_code = nullif(y.failure_code, ''),
        failure_text = nullif(y.failure_text, ''), given = y.given, booked = y.booked,
        noticed_at = nullif(y.noticed_at, '0001-01-01 00:00:00+00'), outcome_flag_id = nullif(y.outcome_flag_id, 0)
    from (
        select l.ctid as tid, u.*
        from (
            select unnest(@tenants::integer[]) as tenant_id, unnest(@refund_nos::text[]) as refund_no,
                unnest(@gateway_refund_ids::text[]) as gateway_refund_id,
                unnest(@failure_codes::text[]) as failure_code, unnest(@failure_texts::text[]) as failure_text,
                unnest(@given::numeric[]) as given, unnest(@booked::numeric[]) as booked,
                unnest(@noticed_at::timestamptz[]) as noticed_at, unnest(@outcome_flag_ids::bigint[]) as outcome_flag_id
        ) u
        cross join lateral (
            select x.ctid from payment_refunds x
            where x.tenant_id = u.tenant_id and x.refund_no = u.refund_no
            offset 0
        ) l
    ) y
    where r.ctid = y.tid
    returning 1
)
select commit_expect(count(*), cardinality(@refund_nos::text[])) from changed;

-- name: ConsoleLock :many
-- Locks console refunds in the order of the arrays, which callers sort by tenant and id.
select u.n::integer as n, r.gateway, r.refund_no, r.gateway_refund_id, r.out_trade_no, r.transaction_id, r.currency,
    r.asset, r.scale, r.amount, r.failed, r.noticed_at, r.flag_id
from (
    select generate_subscripts(@console_ids::bigint[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@console_ids::bigint[]) as console_id
) u
cross join lateral (
    select l.* from payment_console_refunds l where l.tenant_id = u.tenant_id and l.console_id = u.console_id
    offset 0 for no key update
) r;

-- name: ConsoleInsert :exec
insert into payment_console_refunds (tenant_id, console_id, gateway, refund_no, gateway_refund_id, out_trade_no,
    transaction_id, currency, asset, scale, amount, failed, noticed_at, flag_id, recorded_at)
select u.tenant_id, u.console_id, u.gateway, nullif(u.refund_no, ''), nullif(u.gateway_refund_id, ''), u.out_trade_no,
    u.transaction_id, u.currency, nullif(u.asset, ''), u.scale, u.amount, u.failed,
    nullif(u.noticed_at, '0001-01-01 00:00:00+00'), nullif(u.flag_id, 0), @now::timestamptz
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@console_ids::bigint[]) as console_id,
        unnest(@gateways::text[]) as gateway, unnest(@refund_nos::text[]) as refund_no,
        unnest(@gateway_refund_ids::text[]) as gateway_refund_id, unnest(@out_trade_nos::text[]) as out_trade_no,
        unnest(@transaction_ids::text[]) as transaction_id, unnest(@currencies::text[]) as currency,
        unnest(@assets::text[]) as asset, unnest(@scales::smallint[]) as scale, unnest(@amounts::numeric[]) as amount,
        unnest(@failed::boolean[]) as failed, unnest(@noticed_at::timestamptz[]) as noticed_at,
        unnest(@flag_ids::bigint[]) as flag_id
) u;

-- name: ConsoleUpdate :exec
-- Updates the columns of console refunds that can change. Rows are found by their keys.
with changed as (
    update payment_console_refunds r
    set currency = y.currency, asset = nullif(y.asset, ''), scale = y.scale, amount = y.amount, failed = y.failed,
        noticed_at = nullif(y.noticed_at, '0001-01-01 00:00:00+00'), flag_id = nullif(y.flag_id, 0)
    from (
        select l.ctid as tid, u.*
        from (
            select unnest(@tenants::integer[]) as tenant_id, unnest(@console_ids::bigint[]) as console_id,
                unnest(@currencies::text[]) as currency, unnest(@assets::text[]) as asset,
                unnest(@scales::smallint[]) as scale, unnest(@amounts::numeric[]) as amount,
                unnest(@failed::boolean[]) as failed, unnest(@noticed_at::timestamptz[]) as noticed_at,
                unnest(@flag_ids::bigint[]) as flag_id
        ) u
        cross join lateral (
            select x.ctid from payment_console_refunds x
            where x.tenant_id = u.tenant_id and x.console_id = u.console_id
            offset 0
        ) l
    ) y
    where r.ctid = y.tid
    returning 1
)
select commit_expect(count(*), cardinality(@console_ids::bigint[])) from changed;

-- name: FlagLookup :many
-- Flags by id. Their money never changes; their state is guarded by the instance of the payment.
select u.n::integer as n, f.kind, f.detail, f.gateway, f.transaction_id, f.out_trade_no, f.order_no, f.currency,
    f.asset, f.scale, f.amount, f.account, f.about_refund, f.about_console, f.request_id, f.created_at, f.state,
    f.resolution, f.target, f.refund_no, f.note, f.resolved_by, f.resolved_request_id, f.resolved_at
from (
    select generate_subscripts(@flag_ids::bigint[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@flag_ids::bigint[]) as flag_id
) u
cross join lateral (
    select l.* from payment_flags l where l.tenant_id = u.tenant_id and l.flag_id = u.flag_id offset 0
) f;

-- name: FlagInsert :exec
insert into payment_flags (tenant_id, flag_id, kind, detail, gateway, transaction_id, out_trade_no, order_no, currency,
    asset, scale, amount, account, about_refund, about_console, request_id, created_at)
select u.tenant_id, u.flag_id, u.kind, u.detail, u.gateway, u.transaction_id, u.out_trade_no, nullif(u.order_no, ''),
    u.currency, nullif(u.asset, ''), u.scale, u.amount, nullif(u.account, ''), nullif(u.about_refund, ''),
    nullif(u.about_console, 0), u.request_id, @now::timestamptz
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@flag_ids::bigint[]) as flag_id,
        unnest(@kinds::text[]) as kind, unnest(@details::text[]) as detail, unnest(@gateways::text[]) as gateway,
        unnest(@transaction_ids::text[]) as transaction_id, unnest(@out_trade_nos::text[]) as out_trade_no,
        unnest(@order_nos::text[]) as order_no, unnest(@currencies::text[]) as currency,
        unnest(@assets::text[]) as asset, unnest(@scales::smallint[]) as scale, unnest(@amounts::numeric[]) as amount,
        unnest(@accounts::text[]) as account, unnest(@about_refunds::text[]) as about_refund,
        unnest(@about_consoles::bigint[]) as about_console,
        unnest(@request_ids::text[]) as request_id
) u;

-- name: FlagResolve :exec
-- Resolves flags, or opens them again if the resolution is empty. Rows are found by their keys. Fails if a flag is in
-- the requested state already.
with resolved as (
    update payment_flags f
    set state = case y.resolution when '' then 'open' else 'resolved' end, resolution = nullif(y.resolution, ''),
        target = nullif(y.target, ''), refund_no = nullif(y.refund_no, ''), note = nullif(y.note, ''),
        resolved_by = nullif(y.resolved_by, ''), resolved_request_id = nullif(y.resolved_request_id, ''),
        resolved_at = nullif(y.resolved_at, '0001-01-01 00:00:00+00')
    from (
        select l.ctid as tid, u.*
        from (
            select unnest(@tenants::integer[]) as tenant_id, unnest(@flag_ids::bigint[]) as flag_id,
                unnest(@resolutions::text[]) as resolution, unnest(@targets::text[]) as target,
                unnest(@refund_nos::text[]) as refund_no, unnest(@notes::text[]) as note,
                unnest(@resolved_by::text[]) as resolved_by,
                unnest(@resolved_request_ids::text[]) as resolved_request_id,
                unnest(@resolved_at::timestamptz[]) as resolved_at
        ) u
        cross join lateral (
            select x.ctid from payment_flags x
            where x.tenant_id = u.tenant_id and x.flag_id = u.flag_id
            offset 0
        ) l
    ) y
    where f.ctid = y.tid and (f.state = 'open') = (y.resolution <> '')
    returning 1
)
select commit_expect(count(*), cardinality(@flag_ids::bigint[])) from resolved;

-- name: CallPut :exec
-- Schedules calls in place of the scheduled ones; a worker with an old call loses its lease. A scheduled "close" of an
-- open payment stays, because its order has ended. A nonce of 0 means no lease. If another gateway sent a notice before
-- the payment was created, the call goes to the payment's own gateway.
insert into payment_calls (tenant_id, subject, number, gateway, call, next_call_at, attempts, lease_expires_at,
    lease_nonce)
select u.tenant_id, u.subject, u.number, u.gateway, u.call, u.next_call_at,
    case when u.lease_nonce <> 0 then 1 else 0 end as attempts,
    nullif(u.lease_expires_at, '0001-01-01 00:00:00+00') as lease_expires_at, nullif(u.lease_nonce, 0) as lease_nonce
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@subjects::text[]) as subject,
        unnest(@numbers::text[]) as number, unnest(@gateways::text[]) as gateway, unnest(@calls::text[]) as call,
        unnest(@next_call_at::timestamptz[]) as next_call_at, unnest(@lease_nonces::bigint[]) as lease_nonce,
        unnest(@lease_expires_at::timestamptz[]) as lease_expires_at
) u
on conflict (tenant_id, subject, number) do update
set gateway = excluded.gateway, call = excluded.call, next_call_at = excluded.next_call_at,
    attempts = excluded.attempts, lease_expires_at = excluded.lease_expires_at, lease_nonce = excluded.lease_nonce,
    last_code = null, last_text = null
where payment_calls.call <> 'close' or excluded.call = 'flag';

-- name: CallLock :many
-- Locks calls in the order of the arrays, which callers sort. A worker that leases a call at the same time moves its
-- row: the statements after this one see the row at its new place.
select c.number
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@subjects::text[]) as subject,
        unnest(@numbers::text[]) as number
) u
cross join lateral (
    select x.number from payment_calls x
    where x.tenant_id = u.tenant_id and x.subject = u.subject and x.number = u.number
    offset 0 for no key update
) c;

-- name: CallLockOfOrder :many
-- CallLock for the payments of orders, which callers sort.
select c.number
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@order_nos::text[]) as order_no
) u
cross join lateral (
    select q.out_trade_no from (
        select l.out_trade_no from payment_payments l
        where l.tenant_id = u.tenant_id and l.order_no = u.order_no and l.order_no <> '' offset 0
    ) q
    order by q.out_trade_no
) p
cross join lateral (
    select x.number from payment_calls x
    where x.tenant_id = u.tenant_id and x.subject = 'payment' and x.number = p.out_trade_no
    offset 0 for no key update
) c;

-- name: CallDelete :execrows
-- Deletes the scheduled calls of payments and refunds, if they have any. CallLock has locked them. If a call is given,
-- only a scheduled call of that kind is deleted.
delete from payment_calls
where ctid = any(array(
    select l.ctid
    from (
        select unnest(@tenants::integer[]) as tenant_id, unnest(@subjects::text[]) as subject,
            unnest(@numbers::text[]) as number, unnest(@calls::text[]) as call
    ) u
    cross join lateral (
        select x.ctid from payment_calls x
        where x.tenant_id = u.tenant_id and x.subject = u.subject and x.number = u.number
            and u.call in ('', x.call)
        offset 0
    ) l
));

-- name: CallClose :execrows
-- Schedules the call "close" for the open payments of ended orders, if they have any. CallLockOfOrder has locked the
-- calls.
update payment_calls c
set call = 'close', next_call_at = @now::timestamptz, attempts = 0, lease_expires_at = null, lease_nonce = null,
    last_code = null, last_text = null
from (
    select x.ctid as tid
    from (
        select unnest(@tenants::integer[]) as tenant_id, unnest(@order_nos::text[]) as order_no
    ) u
    cross join lateral (
        select l.out_trade_no from payment_payments l
        where l.tenant_id = u.tenant_id and l.order_no = u.order_no and l.order_no <> '' offset 0
    ) p
    cross join lateral (
        select y.ctid from payment_calls y
        where y.tenant_id = u.tenant_id and y.subject = 'payment' and y.number = p.out_trade_no
            and y.call in ('submit', 'query') offset 0
    ) x
) y
where c.ctid = y.tid;

-- name: TransactionOfPayment :many
-- Transactions of payments, oldest first, at most 20 for each.
select u.n::integer as n, x.gateway, x.transaction_id, x.out_trade_no, x.notice_id, x.currency, x.asset, x.scale,
    x.amount, x.account, x.refunding, x.refunded, x.extra_refunded
from (
    select generate_subscripts(@out_trade_nos::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@out_trade_nos::text[]) as out_trade_no
) u
cross join lateral (
    select l.* from payment_money l
    where l.tenant_id = u.tenant_id and l.out_trade_no = u.out_trade_no and l.out_trade_no <> ''
    order by l.notice_id
    limit 20
) x
order by u.n, x.notice_id;
