-- The amount of a console refund, according to its gateway's last notice, is the sum of its flags unknown_refund in its
-- currency, less its flags refund_returned; withdrawn flags do not count. In other currencies these sums are equal.
select r.tenant_id, r.console_id, r.gateway, r.out_trade_no, r.refund_no, r.gateway_refund_id,
    case when f.others then 'money is flagged in another currency' end as problem,
    g.given, f.given as given_expected
from payment_console_refunds r
cross join lateral (select case when r.failed then 0 else r.amount end as given) g
cross join lateral (
    select coalesce(sum(u.amount) filter (where u.own), 0) as given,
        coalesce(bool_or(not u.own and u.amount <> 0), false) as others
    from (
        select (l.currency, l.asset, l.scale) is not distinct from (r.currency, r.asset, r.scale) as own,
            sum(case l.kind when 'unknown_refund' then l.amount else -l.amount end) as amount
        from payment_flags l
        where l.tenant_id = r.tenant_id and l.out_trade_no = r.out_trade_no and l.out_trade_no <> ''
            and l.about_console = r.console_id and l.resolution is distinct from 'withdrawn'
        group by l.currency, l.asset, l.scale
    ) u
) f
where g.given <> f.given or f.others
