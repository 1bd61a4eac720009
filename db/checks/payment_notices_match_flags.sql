-- What a gateway gave back, or did not, and fits no refund, has a flag of the same batch: of the amount of the notice,
-- if it is about no refund of ours.
select n.tenant_id, n.notice_id, n.gateway, n.notify_id, n.out_trade_no, n.refund_no, n.amount,
    'there is no such flag' as problem
from payment_notices n
where n.verdict = 'flagged' and n.kind in ('refunded', 'refund_failed') and not exists (
    select from payment_flags f
    where f.tenant_id = n.tenant_id and f.flag_id between n.notice_id >> 14 << 14 and (n.notice_id >> 14 << 14) + 16383
        and f.kind in ('unknown_refund', 'refund_returned') and f.gateway = n.gateway
        and f.out_trade_no = n.out_trade_no and (f.about_refund = n.refund_no
            or f.about_refund is null and f.amount = coalesce(n.amount, '0')::numeric * 10::numeric ^ f.scale::numeric)
)
