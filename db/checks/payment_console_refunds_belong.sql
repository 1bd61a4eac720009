-- A notice told of every console refund first, not after it was recorded, and its name leads to it, unless it has none,
-- or one that was cut. Its last flag is about it.
select r.tenant_id, r.console_id, r.gateway, r.out_trade_no, r.refund_no, r.gateway_refund_id,
    case when n.notice_id is null then 'no notice told of it' when x.notify_id is null and w.name is not null
            then 'its name does not lead to it'
        when f.flag_id is null and r.flag_id is not null then 'its flag is about something else' end as problem,
    r.recorded_at
from payment_console_refunds r
cross join lateral (
    select case when octet_length(v.name) <= 256 then v.name end as name
    from (select 'unknown_refund/' || coalesce(r.gateway_refund_id, r.out_trade_no || '/' || r.refund_no)) v (name)
) w
left join payment_notices n on n.tenant_id = r.tenant_id and n.notice_id = r.console_id and n.gateway = r.gateway
    and n.kind in ('refunded', 'refund_failed') and n.recorded_at <= r.recorded_at
left join payment_notice_names x on x.tenant_id = r.tenant_id and x.gateway = r.gateway and x.notify_id = w.name
    and x.notice_id = r.console_id
left join payment_flags f on f.tenant_id = r.tenant_id and f.flag_id = r.flag_id and f.about_console = r.console_id
where n.notice_id is null or x.notify_id is null and w.name is not null or f.flag_id is null and r.flag_id is not null
