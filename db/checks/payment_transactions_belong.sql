-- Every transaction equals its notice: number, currency and amount. It was recorded with that notice, or later if the
-- payment was unknown then. It has paid its payment, or it was flagged.
select x.tenant_id, x.gateway, x.transaction_id, x.out_trade_no,
    case when n.notice_id is null then 'no notice reported it'
        when f.flag_id is null and p.state is null then 'it paid nothing, and it was not flagged' end as problem,
    x.currency, n.currency as currency_expected, x.amount, n.amount as amount_expected,
    x.recorded_at, case when n.effect = 'unmatched' then x.recorded_at else n.recorded_at end as recorded_at_expected
from payment_transactions x
left join lateral (
    select y.notice_id, y.currency, y.effect, y.recorded_at,
        trim_scale(coalesce(y.amount, '0')::numeric * 10::numeric ^ x.scale::numeric) as amount
    from payment_notices y
    where y.tenant_id = x.tenant_id and y.notice_id = x.notice_id and y.gateway = x.gateway and y.kind = 'paid'
        and y.transaction_id = x.transaction_id and y.out_trade_no = x.out_trade_no
    offset 0
) n on true
left join lateral (
    select y.flag_id from payment_flags y
    where y.tenant_id = x.tenant_id and y.out_trade_no = x.out_trade_no and y.out_trade_no <> ''
        and y.gateway = x.gateway and y.transaction_id = x.transaction_id
        and y.kind not in ('unknown_refund', 'refund_returned')
    offset 0
) f on true
left join lateral (
    select i.state from payment_payments y
    join machine_instances i on i.tenant_id = y.tenant_id and i.machine = 'payment' and i.key = y.out_trade_no
    where y.tenant_id = x.tenant_id and y.out_trade_no = x.out_trade_no and y.gateway = x.gateway
        and y.transaction_id = x.transaction_id and i.state = 'succeeded'
    offset 0
) p on true
where n.notice_id is null or f.flag_id is null and p.state is null or x.currency is distinct from n.currency
    or x.amount <> n.amount or x.recorded_at <> n.recorded_at and n.effect <> 'unmatched'
