-- Money of a paid notice that was applied or flagged is recorded as a transaction, under the out_trade_no of the
-- notice. Money for an unknown payment is recorded, or a call about that payment is scheduled, which will record it.
select n.tenant_id, n.notice_id, n.gateway, n.notify_id, n.out_trade_no, n.transaction_id, n.effect,
    case when n.effect = 'unmatched' then 'no call is due that would take its money'
        else 'there is no such transaction' end as problem
from payment_notices n
left join payment_transactions x on x.tenant_id = n.tenant_id and x.gateway = n.gateway
    and x.transaction_id = n.transaction_id and (x.out_trade_no = n.out_trade_no or n.effect = 'unmatched')
left join payment_calls c on n.effect = 'unmatched' and c.tenant_id = n.tenant_id and c.subject = 'payment'
    and c.number = n.out_trade_no
where n.kind = 'paid' and n.effect in ('applied', 'flagged', 'unmatched') and x.transaction_id is null
    and c.number is null
