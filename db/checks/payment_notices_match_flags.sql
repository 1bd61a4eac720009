-- For every flagged notice of a refund, its batch raised a flag about that refund or about a console refund.
select n.tenant_id, n.notice_id, n.gateway, n.notify_id, n.out_trade_no, n.refund_no, n.amount,
    'there is no such flag' as problem
from payment_notices n
where n.effect = 'flagged' and n.kind in ('refunded', 'refund_failed') and not exists (
    select from payment_flags f
    where f.tenant_id = n.tenant_id and f.flag_id between n.notice_id >> 14 << 14 and (n.notice_id >> 14 << 14) + 16383
        and f.kind in ('unknown_refund', 'refund_returned') and f.gateway = n.gateway
        and (f.about_refund = n.refund_no and f.out_trade_no = n.out_trade_no or exists (
            select from payment_console_refunds r
            where r.tenant_id = f.tenant_id and r.console_id = f.about_console and r.gateway = n.gateway
        ))
)
