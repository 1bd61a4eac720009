-- Every transaction without a flag was posted to its payee. A flagged one was posted to the suspense account of its
-- flag, or not at all if the flag has no account. The resolution accept of the flag posts it to the payee, write_off to
-- the target. Each of these transfers has the whole amount, and the column account is the account of the last one.
-- Transactions with both a write-off and a refund are not checked.
select x.tenant_id, x.gateway, x.transaction_id, x.account, m.stands as account_expected, m.biz_no,
    case when t.transfer_id is null then 'there is no such transfer'
        when not t.whole then 'the transfer is of other money' end as problem
from payment_transactions x
left join lateral (
    select y.* from payment_flags y
    where y.tenant_id = x.tenant_id and y.out_trade_no = x.out_trade_no and y.out_trade_no <> ''
        and y.gateway = x.gateway and y.transaction_id = x.transaction_id
        and y.kind not in ('unknown_refund', 'refund_returned')
    offset 0
) f on true
left join lateral (
    select y.payee from payment_payments y where y.tenant_id = x.tenant_id and y.out_trade_no = x.out_trade_no offset 0
) p on true
cross join lateral (
    select v.*, case f.resolution when 'write_off' then f.target when 'accept' then p.payee
        else case when f.flag_id is null then p.payee else f.account end end as stands
    from (
        values ('pay/' || x.gateway || '/' || x.transaction_id, null,
                case when f.flag_id is null then p.payee else f.account end),
            ('flag/' || f.flag_id, f.account,
                case f.resolution when 'write_off' then f.target when 'accept' then p.payee end)
    ) v (biz_no, source, target)
) m
left join lateral (
    select y.transfer_id, (
        select count(*) = 2 and bool_or(e.amount > 0 and a.code = m.target)
            and bool_or(e.amount < 0 and a.code = coalesce(m.source, a.code))
            and bool_and(a.asset = x.asset
                and abs(e.amount) * 10::numeric ^ x.scale::numeric = x.amount * 10::numeric ^ a.scale::numeric)
        from ledger_entries e
        join ledger_accounts a on a.tenant_id = e.tenant_id and a.account_id = e.account_id
        where e.tenant_id = y.tenant_id and e.transfer_id = y.transfer_id
    ) as whole
    from ledger_transfers y where y.tenant_id = x.tenant_id and y.biz_no = m.biz_no and m.target is not null
    offset 0
) t on true
where x.amount > 0 and not (f.resolution is not distinct from 'write_off' and x.refunded > 0)
    and (x.account is distinct from m.stands or m.target is not null and t.whole is not true)
