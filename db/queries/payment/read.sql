-- Reads of payments, beside the engine: one tenant, planned with their actual values.

-- name: GatewayGet :one
select g.clearing, g.suspense, g.payee
from payment_gateways g
where g.tenant_id = @tenant_id::integer and g.gateway = @gateway::text;

-- name: GatewayPage :many
-- Gateways after a name.
select g.gateway, g.clearing, g.suspense, g.payee
from payment_gateways g
where g.tenant_id = @tenant_id::integer and g.gateway > @after::text
order by g.gateway
limit @count::integer;

-- name: PaymentGet :one
select p.out_trade_no, p.payment_id, p.order_no, p.gateway, p.pay_type, p.attempt, p.asset, p.scale, p.amount, p.payee,
    p.description, p.payer, p.payer_ip, p.return_url, p.expires_at, p.principal, p.request_id, p.created_at,
    p.transaction_id, p.paid_at, p.credential, p.failure_code, p.failure_text, i.state, i.revision, i.changed_at,
    round(coalesce(x.refunding, 0) * 10::numeric ^ (p.scale - coalesce(x.scale, p.scale)))::numeric as refunding,
    least(10::numeric ^ 38 - 1, round(coalesce(x.refunded + x.extra_refunded, 0)
        * 10::numeric ^ (p.scale - coalesce(x.scale, p.scale))))::numeric as refunded
from payment_payments p
cross join lateral (
    select l.state, l.revision, l.changed_at from machine_instances l
    where l.tenant_id = p.tenant_id and l.machine = 'payment' and l.key = p.out_trade_no offset 0
) i
left join lateral (
    select l.scale, l.refunding, l.refunded, l.extra_refunded from payment_money l
    where l.tenant_id = p.tenant_id and l.gateway = p.gateway and l.transaction_id = p.transaction_id offset 0
) x on true
where p.tenant_id = @tenant_id::integer and p.out_trade_no = @out_trade_no::text;

-- name: PaymentPage :many
-- The newest payments before an id, of an order or of all.
select p.out_trade_no, p.payment_id, p.order_no, p.gateway, p.pay_type, p.attempt, p.asset, p.scale, p.amount, p.payee,
    p.description, p.payer, p.payer_ip, p.return_url, p.expires_at, p.principal, p.request_id, p.created_at,
    p.transaction_id, p.paid_at, p.credential, p.failure_code, p.failure_text, i.state, i.revision, i.changed_at,
    round(coalesce(x.refunding, 0) * 10::numeric ^ (p.scale - coalesce(x.scale, p.scale)))::numeric as refunding,
    least(10::numeric ^ 38 - 1, round(coalesce(x.refunded + x.extra_refunded, 0)
        * 10::numeric ^ (p.scale - coalesce(x.scale, p.scale))))::numeric as refunded
from (
    (
        select l.* from payment_payments l
        where @order_no::text = '' and l.tenant_id = @tenant_id::integer and l.payment_id > 0
            and l.payment_id < @before_id::bigint
        order by l.payment_id desc
        limit @count::integer
    )
    union all
    (
        select l.* from payment_payments l
        where @order_no::text <> '' and l.tenant_id = @tenant_id::integer and l.order_no = @order_no::text
            and l.order_no <> '' and l.payment_id < @before_id::bigint
    )
) p
cross join lateral (
    select y.* from machine_instances y
    where y.tenant_id = p.tenant_id and y.machine = 'payment' and y.key = p.out_trade_no offset 0
) i
left join lateral (
    select y.* from payment_money y
    where y.tenant_id = p.tenant_id and y.gateway = p.gateway and y.transaction_id = p.transaction_id offset 0
) x on true
order by p.payment_id desc
limit @count::integer;

-- name: NoticePage :many
-- The newest notices before an id, of a payment or of all.
select n.notice_id, n.gateway, n.notify_id, n.callback, n.kind, n.out_trade_no, n.transaction_id, n.refund_no,
    n.amount, n.currency, n.effect, n.detail, n.headers, n.body, n.request_id, n.occurred_at, n.recorded_at
from (
    (
        select l.* from payment_notices l
        where @out_trade_no::text = '' and l.tenant_id = @tenant_id::integer and l.notice_id < @before_id::bigint
        order by l.notice_id desc
        limit @count::integer
    )
    union all
    (
        select l.* from payment_notices l
        where @out_trade_no::text <> '' and l.tenant_id = @tenant_id::integer and l.out_trade_no = @out_trade_no::text
            and l.out_trade_no <> '' and l.notice_id < @before_id::bigint
        order by l.notice_id desc
        limit @count::integer
    )
) n
order by n.notice_id desc;

-- name: NoticeWaiting :many
-- Notices that came before their payment and whose money is not recorded yet, oldest first.
select n.gateway, n.callback, n.asset, n.fields, n.headers, n.body, n.request_id
from payment_notices n
where n.tenant_id = @tenant_id::integer and n.out_trade_no = @out_trade_no::text and n.out_trade_no <> ''
    and n.effect = 'unmatched' and ( -- as in NoticeUnknown
        select count(*) from payment_transactions t
        where t.tenant_id = n.tenant_id and t.gateway = n.gateway and t.transaction_id = n.transaction_id
    ) = 0
order by n.notice_id
limit @most::integer;

-- name: RefundGet :one
select r.refund_no, r.refund_id, r.out_trade_no, r.gateway, r.transaction_id, r.currency, r.asset, r.scale, r.amount,
    r.account, r.moves_order, r.reason, r.principal, r.request_id, r.created_at, r.gateway_refund_id, r.failure_code,
    r.failure_text, i.state, i.revision, i.changed_at
from payment_refunds r
cross join lateral (
    select l.state, l.revision, l.changed_at from machine_instances l
    where l.tenant_id = r.tenant_id and l.machine = 'refund' and l.key = r.refund_no offset 0
) i
where r.tenant_id = @tenant_id::integer and r.refund_no = @refund_no::text;

-- name: RefundPage :many
-- The newest refunds before an id, of a payment or of all.
select r.refund_no, r.refund_id, r.out_trade_no, r.gateway, r.transaction_id, r.currency, r.asset, r.scale, r.amount,
    r.account, r.moves_order, r.reason, r.principal, r.request_id, r.created_at, r.gateway_refund_id, r.failure_code,
    r.failure_text, i.state, i.revision, i.changed_at
from (
    (
        select l.* from payment_refunds l
        where @out_trade_no::text = '' and l.tenant_id = @tenant_id::integer and l.refund_id > 0
            and l.refund_id < @before_id::bigint
        order by l.refund_id desc
        limit @count::integer
    )
    union all
    (
        select l.* from payment_refunds l
        where @out_trade_no::text <> '' and l.tenant_id = @tenant_id::integer and l.out_trade_no = @out_trade_no::text
            and l.out_trade_no <> '' and l.refund_id < @before_id::bigint
        order by l.refund_id desc
        limit @count::integer
    )
) r
cross join lateral (
    select y.* from machine_instances y
    where y.tenant_id = r.tenant_id and y.machine = 'refund' and y.key = r.refund_no offset 0
) i
order by r.refund_id desc;

-- name: RefundPeriod :many
-- The newest refunds of a period, before a time and an id, of one gateway or of all.
select r.refund_no, r.refund_id, r.out_trade_no, r.gateway, r.transaction_id, r.currency, r.asset, r.scale, r.amount,
    r.account, r.moves_order, r.reason, r.principal, r.request_id, r.created_at, r.gateway_refund_id, r.failure_code,
    r.failure_text, i.state, i.revision, i.changed_at
from (
    select l.* from payment_refunds l
    where l.tenant_id = @tenant_id::integer and l.refund_id > 0 and l.created_at >= @start_at::timestamptz
        and l.created_at < @end_at::timestamptz
        and (l.created_at, l.refund_id) < (@before_at::timestamptz, @before_id::bigint)
        and (@gateway::text = '' or l.gateway = @gateway::text)
    order by l.created_at desc, l.refund_id desc
    limit @count::integer
) r
cross join lateral (
    select y.* from machine_instances y
    where y.tenant_id = r.tenant_id and y.machine = 'refund' and y.key = r.refund_no offset 0
) i
order by r.created_at desc, r.refund_id desc;

-- name: TransactionPage :many
-- The newest transactions of a period, before a time and an id, of one gateway or of all; or the transactions of a
-- gateway with given numbers.
select x.gateway, x.transaction_id, x.out_trade_no, x.notice_id, x.currency, x.asset, x.scale, x.amount, x.account,
    x.refunding, x.refunded, x.extra_refunded, x.recorded_at, n.occurred_at
from (
    (
        select l.* from (select distinct u.id from unnest(@transaction_ids::text[]) u (id)) u
        cross join lateral (
            select y.* from payment_money y
            where y.tenant_id = @tenant_id::integer and y.gateway = @gateway::text and y.transaction_id = u.id offset 0
        ) l
        where l.recorded_at >= @start_at::timestamptz and l.recorded_at < @end_at::timestamptz
            and (l.recorded_at, l.notice_id) < (@before_at::timestamptz, @before_id::bigint)
    )
    union all
    (
        select l.* from payment_money l
        where cardinality(@transaction_ids::text[]) = 0 and l.tenant_id = @tenant_id::integer and l.notice_id > 0
            and l.recorded_at >= @start_at::timestamptz and l.recorded_at < @end_at::timestamptz
            and (l.recorded_at, l.notice_id) < (@before_at::timestamptz, @before_id::bigint)
            and (@gateway::text = '' or l.gateway = @gateway::text)
        order by l.recorded_at desc, l.notice_id desc
        limit @count::integer
    )
) x
cross join lateral (
    select y.occurred_at from payment_notices y
    where y.tenant_id = x.tenant_id and y.notice_id = x.notice_id offset 0
) n
order by x.recorded_at desc, x.notice_id desc
limit @count::integer;

-- name: TransactionGet :one
select x.out_trade_no, x.notice_id, x.currency, x.asset, x.scale, x.amount, x.account, x.refunding, x.refunded
from payment_transactions x
where x.tenant_id = @tenant_id::integer and x.gateway = @gateway::text and x.transaction_id = @transaction_id::text;

-- name: PaymentOfName :one
-- The payment of the notice that a name refers to.
select n.out_trade_no
from payment_notice_names l
cross join lateral (
    select x.out_trade_no from payment_notices x where x.tenant_id = l.tenant_id and x.notice_id = l.notice_id offset 0
) n
where l.tenant_id = @tenant_id::integer and l.gateway = @gateway::text and l.notify_id = @notify_id::text;

-- name: PaymentOfTransaction :one
-- The undecided payment with a given transaction id. Undecided payments have scheduled calls, which are few.
select p.out_trade_no
from payment_calls c
cross join lateral (
    select l.out_trade_no from payment_payments l
    where l.tenant_id = c.tenant_id and l.out_trade_no = c.number and l.gateway = c.gateway
        and l.transaction_id = @transaction_id::text
    offset 0
) p
where c.tenant_id = @tenant_id::integer and c.gateway = @gateway::text and c.subject = 'payment'
    and c.call <> 'flag'
limit 1;

-- name: FlagPage :many
-- Flags after an id, open ones or all.
select f.flag_id, f.kind, f.detail, f.gateway, f.transaction_id, f.out_trade_no, f.order_no, f.currency, f.asset,
    f.scale, f.amount, f.account, f.about_refund, f.request_id, f.created_at, f.state, f.resolution, f.target,
    f.refund_no, f.note, f.resolved_by, f.resolved_request_id, f.resolved_at
from (
    (
        select l.* from payment_flags l
        where @state::text = 'open' and l.tenant_id = @tenant_id::integer and l.state = 'open'
            and l.flag_id > @after_id::bigint
        order by l.flag_id
        limit @count::integer
    )
    union all
    (
        select l.* from payment_flags l
        where @state::text <> 'open' and l.tenant_id = @tenant_id::integer
            and (@state::text = '' or l.state = @state::text) and l.flag_id > @after_id::bigint
        order by l.flag_id
        limit @count::integer
    )
) f
order by f.flag_id;
