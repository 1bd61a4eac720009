-- Every flag is about a whole transaction, about a console refund, or about a refund whose outcome changed. The
-- resolution of a flag has its effect. accept: the payment has succeeded with the flag's transaction. refund: there is
-- a refund that has not failed. write_off: there is a transfer of the amount, unless money was refunded before or the
-- ledger does not have the asset. The transaction of an open flag is not fully refunded. A flag has the time of its
-- batch, or an earlier time if an account of the batch was ahead of the clock.
select f.tenant_id, f.flag_id, f.kind, f.gateway, f.transaction_id, f.out_trade_no,
    case when f.kind not in ('unknown_refund', 'refund_returned') and x.transaction_id is null
            then 'there is no such transaction'
        when f.resolution = 'refund' and r.refund_no is null then 'there is no such refund'
        when f.resolution = 'refund' and r.state = 'failed' then 'its refund has failed'
        when f.resolution = 'accept' and p.state is null then 'its payment has not succeeded by it'
        when f.state = 'open' and x.refunded > 0 and x.refunded = x.amount then 'its money has been given back'
        when f.resolution = 'write_off' and t.transfer_id is null and x.refunded = 0 and f.asset is not null
                and f.amount > 0
            then 'there is no such transfer'
        when not c.found then 'there is no such console refund'
        when b.batch_id is null then 'no batch made it' end as problem,
    f.currency, x.currency as currency_expected, f.amount, x.amount as amount_expected,
    f.created_at, b.recorded_at as created_at_expected
from payment_flags f
left join lateral (
    select y.transaction_id, y.currency, y.asset, y.scale, y.amount, y.refunded from payment_transactions y
    where f.kind not in ('unknown_refund', 'refund_returned') and y.tenant_id = f.tenant_id and y.gateway = f.gateway
        and y.transaction_id = f.transaction_id and y.out_trade_no = f.out_trade_no
    union all
    select null, f.currency, f.asset, f.scale, f.amount, 0 where f.kind in ('unknown_refund', 'refund_returned')
    offset 0
) x on true
left join lateral (
    select y.refund_no, i.state from payment_refunds y
    join machine_instances i on i.tenant_id = y.tenant_id and i.machine = 'refund' and i.key = y.refund_no
    where y.tenant_id = f.tenant_id and y.refund_no = f.refund_no and y.gateway = f.gateway
        and y.transaction_id = f.transaction_id
    offset 0
) r on true
left join lateral (
    select i.state from payment_payments y
    join machine_instances i on i.tenant_id = y.tenant_id and i.machine = 'payment' and i.key = y.out_trade_no
    where f.resolution = 'accept' and y.tenant_id = f.tenant_id and y.out_trade_no = f.out_trade_no
        and y.gateway = f.gateway and y.transaction_id = f.transaction_id and i.state = 'succeeded'
    offset 0
) p on true
left join lateral (
    select y.transfer_id from ledger_transfers y
    join ledger_entries e on e.tenant_id = y.tenant_id and e.transfer_id = y.transfer_id
    join ledger_accounts a on a.tenant_id = e.tenant_id and a.account_id = e.account_id
    where f.resolution = 'write_off' and y.tenant_id = f.tenant_id and y.biz_no = 'flag/' || f.flag_id
        and a.code = f.target and a.asset = f.asset and (e.amount < 0) = (f.kind = 'unknown_refund')
        and abs(e.amount) * 10::numeric ^ f.scale::numeric = f.amount * 10::numeric ^ a.scale::numeric
    offset 0
) t on true
cross join lateral (
    select f.about_console is null or exists (
        select from payment_console_refunds y where y.tenant_id = f.tenant_id and y.console_id = f.about_console
    ) as found
) c
left join commit_batches b on b.batch_id = f.flag_id >> 14 and b.commands > 0
where (f.currency, f.asset, f.scale, f.amount) is distinct from (x.currency, x.asset, x.scale, x.amount)
    or f.resolution = 'refund' and (r.refund_no is null or r.state = 'failed')
    or f.resolution = 'accept' and p.state is null
    or f.state = 'open' and x.refunded > 0 and x.refunded = x.amount
    or f.resolution = 'write_off' and t.transfer_id is null and x.refunded = 0 and f.asset is not null
        and f.amount > 0
    or not c.found
    or b.batch_id is null or b.recorded_at <> f.created_at
    and not (f.created_at < b.recorded_at and commit_time_taken(b.batch_id, b.recorded_at))
