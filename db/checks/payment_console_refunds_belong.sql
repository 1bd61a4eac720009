-- Every console refund equals its first notice. If it has a number, and its aliases in payment_notice_names need no
-- truncation, one of them refers to it. Its latest flag is about this console refund and its transaction. A console
-- refund that has not failed has a flag.
select r.tenant_id, r.console_id, r.gateway, r.out_trade_no, r.transaction_id, r.refund_no, r.gateway_refund_id,
    case when n.notice_id is null then 'no notice reported it' when w.named and x.notify_id is null
            then 'its name does not lead to it'
        when r.flag_id is null then 'it has no flag' else 'its flag is about something else' end as problem,
    r.recorded_at
from payment_console_refunds r
cross join lateral (
    select num_nonnulls(r.gateway_refund_id, r.refund_no) > 0 and max(octet_length(v.name)) <= 256 as named,
        array_agg(v.name) as names
    from (
        values ('unknown_refund/' || r.gateway_refund_id), ('unknown_refund/' || r.out_trade_no || '/' || r.refund_no),
            ('unknown_refund/' || r.out_trade_no || '/' || r.refund_no || '/' || r.currency)
    ) v (name)
) w
left join payment_notices n on n.tenant_id = r.tenant_id and n.notice_id = r.console_id and n.gateway = r.gateway
    and n.kind in ('refunded', 'refund_failed') and n.out_trade_no = r.out_trade_no
    and n.refund_no is not distinct from r.refund_no and coalesce(n.transaction_id, r.transaction_id) = r.transaction_id
left join lateral (
    select y.notify_id from payment_notice_names y
    where y.tenant_id = r.tenant_id and y.gateway = r.gateway and y.notify_id = any(w.names)
        and y.notice_id = r.console_id
    limit 1
) x on true
left join payment_flags f on f.tenant_id = r.tenant_id and f.flag_id = r.flag_id and f.about_console = r.console_id
    and f.gateway = r.gateway and f.out_trade_no = r.out_trade_no and f.transaction_id = r.transaction_id
where n.notice_id is null or w.named and x.notify_id is null or r.flag_id is null and not r.failed
    or r.flag_id is not null and f.flag_id is null
