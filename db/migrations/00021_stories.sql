-- Views over all domains: audit.requests has the rows that a call created or changed, audit.order_story everything that
-- happened to an order. Locks nothing.
--
-- Only transfers, moves and notifications have indexes on request ids. Rows of the other tables change or are deleted,
-- and new rows reuse their space: there any kind of index costs more than it saves (ADR 8). Those tables are scanned:
-- 0.15 to 0.2 s for a million claims, 0.4 s for a million works in their two branches of 'work', on a busy machine of
-- two cores. A condition on the column what excludes branches, so each kind of row has a branch of its own, even if two
-- kinds share a table.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
set local role ledgerd_owner;

-- The planner uses the indexes on request ids only with a condition on the time.
create view audit.requests as
select t.name as tenant, r.request_id, r.at, r.what, r.name, r.detail, r.principal, r.id
from (
    select tenant_id, request_id, recorded_at as at, 'transfer'::text as what, biz_no as name, type as detail,
        principal, transfer_id as id
    from ledger_transfers where recorded_at > '-infinity'
    union all
    select tenant_id, request_id, created_at, 'hold', biz_no, state, principal, hold_id from ledger_holds
    union all
    select d.tenant_id, d.request_id, d.created_at, 'account', a.code, a.asset, null, d.account_id
    from ledger_account_details d
    left join ledger_accounts a on a.tenant_id = d.tenant_id and a.account_id = d.account_id
    union all
    select tenant_id, request_id, created_at, 'key', key, operation, principal, null from commit_keys where not refused
    union all
    select tenant_id, request_id, created_at, 'refusal', key, operation, principal, null from commit_keys where refused
    union all
    select tenant_id, request_id, issued_at, 'token', encode(token_hash, 'hex') collate "C", purpose, principal, null
    from token_submit_tokens
    union all
    select tenant_id, spent_request_id, spent_at, 'token spent', encode(token_hash, 'hex') collate "C", operation,
        spent_by, null
    from token_submit_tokens where spent_at is not null
    union all
    select tenant_id, request_id, claimed_at, 'claim', key, scope, principal, claim_id from claim_keys
    union all
    select tenant_id, request_id, begun_at, 'work', key, scope, principal, null from work_records
    union all
    select tenant_id, first_request_id, created_at, 'work', key, scope, null, null from work_records where attempt > 1
    union all
    select tenant_id, settled_request_id, settled_at, 'work settled', key, scope || ': ' || state, settled_by, null
    from work_records where settled_at is not null
    union all
    select tenant_id, request_id, received_at, 'message', message_id,
        concat_ws('/', consumer_group, nullif(part, '')) collate "C", principal, inbox_id
    from inbox_messages
    union all
    select tenant_id, last_request_id, greatest(begun_at, finished_at, requeued_at), 'message changed', message_id,
        concat_ws('/', consumer_group, nullif(part, '')) || ': ' || state collate "C", null, inbox_id
    from inbox_messages where last_request_id <> request_id
    union all
    select tenant_id, request_id, acquired_at, 'lock', name, holder, principal, null from lock_locks
    union all
    select tenant_id, request_id, queued_at, 'waiter', name, holder, principal, null from lock_waiters
    union all
    select tenant_id, request_id, accepted_at, 'notification', biz_no,
        concat_ws('/', channel, nullif(business_type, '')) collate "C", principal, message_id
    from notify_messages where accepted_at > '-infinity'
    union all
    select tenant_id, request_id, at, 'notification changed', message_id::text collate "C", kind, principal, message_id
    from notify_events where request_id is not null
    union all
    select tenant_id, request_id, coalesce(sent_at[cardinality(sent_at)], expires_at), 'code',
        recipient_hint collate "C", type, principal, message_id
    from notify_codes where type <> '*'
    union all
    select tenant_id, request_id, created_at, 'template', (name || '@' || version) collate "C",
        (channel || '/' || locale) collate "C", principal, null
    from notify_template_versions
    union all
    select tenant_id, request_id, changed_at, 'endpoint', name, state, principal, endpoint_id from notify_endpoints
    union all
    select tenant_id, request_id, created_at, 'machine', (machine || '@' || version) collate "C", null, principal, null
    from machine_definitions
    union all
    select tenant_id, request_id, recorded_at, 'move', key, machine || ': ' || to_state, principal, instance_id
    from machine_history where recorded_at > '-infinity'
    union all
    select tenant_id, request_id, changed_at, 'item', item, null, principal, null from stock_item_details
    union all
    select tenant_id, request_id, created_at, 'reservation', item || ' ' || reservation_no, state, principal,
        reservation_id
    from stock_reservations
    union all
    select tenant_id, closed_request_id, closed_at, 'reservation ended', item || ' ' || reservation_no, state,
        closed_principal, reservation_id
    from stock_reservations where closed_request_id is not null
    union all
    select tenant_id, request_id, changed_at, 'stock change', item || ' ' || change_no, kind, principal, change_id
    from stock_changes
    union all
    select tenant_id, request_id, created_at, 'order', order_no, subject, principal, order_id from order_orders
    union all
    select tenant_id, request_id, created_at, 'coupon', code, campaign, principal, coupon_id from coupon_coupons
    union all
    select tenant_id, request_id, changed_at, 'sale', sale, item, principal, null from sale_sales
    union all
    select tenant_id, request_id, created_at, 'payment', out_trade_no, order_no, principal, payment_id
    from payment_payments
    union all
    select tenant_id, request_id, created_at, 'refund', refund_no, out_trade_no, principal, refund_id
    from payment_refunds
    union all
    select tenant_id, request_id, recorded_at, 'notice', out_trade_no, kind || ' ' || effect, null, notice_id
    from payment_notices
    union all
    select tenant_id, request_id, created_at, 'flag', out_trade_no, kind, null, flag_id from payment_flags
    union all
    select tenant_id, resolved_request_id, resolved_at, 'flag resolved', out_trade_no, resolution, resolved_by, flag_id
    from payment_flags where state = 'resolved'
    union all
    select tenant_id, request_id, changed_at, 'gateway', gateway, clearing, principal, null from payment_gateways
    union all
    select tenant_id, request_id, recorded_at, 'setting', name, kind, principal, null
    from audit_events where request_id is not null
    union all
    select tenant_id, request_id, created_at, 'approval requested', approval_id::text collate "C", operation, principal,
        approval_id
    from approval_requests
    union all
    select tenant_id, decided_request_id, decided_at, 'approval', approval_id::text collate "C",
        operation || ': ' || state, decided_by, approval_id
    from approval_requests where decided_request_id is not null
) r
left join access_tenants t on t.tenant_id = r.tenant_id;
comment on view audit.requests is
    'Rows that a call created or changed, by its X-Request-ID. Expired rows are missing, and messages, works and '
    'locks have only their last call. Transfers, moves and notifications are found by indexes; all other tables are '
    'scanned, some 0.2 s for a million rows, unless a condition such as what = ''transfer'' excludes them.';
comment on column audit.requests.tenant is 'Name of the tenant.';
comment on column audit.requests.request_id is 'X-Request-ID of the call.';
comment on column audit.requests.at is 'When it was recorded. For a message that failed: when the attempt began.';
comment on column audit.requests.what is
    'transfer; hold; account; key; refusal: a key whose answer is a refusal; token: issued; token spent; claim: '
    'the first use of a key; work: begun; work settled; message: first delivered; message changed: by the last '
    'call that changed it; lock; waiter; notification: an outgoing message; notification changed: cancelled, '
    'requeued or reported on; code: the last one sent or tried; template: a version; endpoint: a webhook endpoint, '
    'created or last changed; machine: a version; move: of an instance of a machine, or its creation; item: created '
    'or last updated by PutItem; reservation; reservation ended: sold or cancelled by another call than the one that '
    'made it; stock change: goods came in, were counted, or were returned; order; coupon: issued; sale: created or '
    'last changed; payment; refund; notice: recorded; flag: raised; flag resolved; gateway: created or last changed; '
    'setting: an event of the audit log; approval requested; approval: approved or rejected.';
comment on column audit.requests.name is
    'biz_no of the transfer, hold or notification; code of the account; request key; SHA-256 of the token; key of the '
    'claim or work; message id; name of the lock; number of the changed notification; masked recipient of the code; '
    'name and version of the template or machine; name of the endpoint, item, sale, gateway or setting; key of the '
    'instance; item and number of the reservation or change; number of the order, payment or refund; code of the '
    'coupon; out_trade_no of the notice or flag; id of the approval.';
comment on column audit.requests.detail is
    'Type of the transfer; state of the hold, reservation or endpoint; asset of the account; operation of the key or '
    'approval; purpose of the token, or operation that spent it; scope of the claim or work; consumer group and part '
    'of the message; holder of the lock; channel and business type of the notification; kind of the change, flag or '
    'setting; type of the code; channel and locale of the template; machine of the instance, and the state that it '
    'entered; subject of the order; campaign of the coupon; item of the sale; order of the payment; payment of the '
    'refund; kind and effect of the notice; resolution of the flag; clearing account of the gateway. For settled, '
    'decided or changed rows followed by a colon and the state.';
comment on column audit.requests.principal is
    'Principal of the caller; null for accounts, changes of messages, moves by timers, notices, '
    'flags that are raised, and first attempts at work that was begun again, which do not record it.';
comment on column audit.requests.id is
    'Id of the row, where id >> 14 is its batch; null for keys, tokens, works, locks, templates, machines, items, '
    'sales, gateways and settings. For a code it is the id of its notification, for a move that of the instance.';
grant select on audit.requests to ledgerd_audit;

-- Each part is found by an index, for one order at a time: "offset 0" keeps the planner from joining whole tables.
create view audit.order_story as
with story as (
    select o.tenant_id, t.name as tenant, o.order_no, s.at, s.n::smallint as n, s.what, s.name, s.detail, s.principal,
        s.request_id
    from order_orders o
    cross join lateral (
        select h.recorded_at as at, case when h.revision = 1 then 1 else 1000 + least(h.revision, 1000) end as n,
            'move'::text as what, h.to_state as name,
            h.cause
                || case when h.revision = 1 then ': ' || audit.decimal(o.amount, o.scale) || ' ' || o.asset else '' end
                || coalesce(': ' || h.reason, '') || coalesce(' ' || h.inputs::text, '') as detail,
            h.principal, h.request_id
        from machine_history h where h.tenant_id = o.tenant_id and h.instance_id = o.order_id
        union all
        select o.created_at, 0, 'token spent', encode(o.submit_token, 'hex') collate "C", k.purpose, o.principal,
            o.request_id
        from (select where o.submit_token is not null) f
        left join lateral (
            select v.purpose from token_submit_tokens v
            where v.tenant_id = o.tenant_id and v.token_hash = o.submit_token
            offset 0
        ) k on true
        union all
        select o.created_at, 6, 'purchase', o.purchase_parts::text collate "C",
            'claimed for ' || make_interval(secs => o.purchase_life_ms / 1000.0), o.principal, o.request_id
        from (select where o.purchase_parts is not null) f
        union all
        select o.created_at, 6, 'sale unit', o.sale, 'unit ' || o.sale_unit || ' of ' || o.subject, o.principal,
            o.request_id
        from (select where o.sale is not null) f
        union all
        -- The first move to a state that cancels parts gives the claim back, unless its life is over, or it is a unit
        -- of a sale with once.
        select h.recorded_at, 2005, case when o.sale is null then 'purchase ended' else 'sale unit ended' end,
            coalesce(o.sale, o.purchase_parts::text collate "C"),
            'given back', h.principal, h.request_id
        from (
            select v.recorded_at, v.principal, v.request_id
            from machine_history v
            join machine_definitions d on d.tenant_id = v.tenant_id and d.machine = v.machine and d.version = v.version
            where (o.purchase_parts is not null or o.sale is not null and not o.once)
                and v.tenant_id = o.tenant_id and v.instance_id = o.order_id
                and d.definition -> 'states' @> jsonb_build_array(
                    jsonb_build_object('name', v.to_state, 'order_parts', 'cancel'))
            order by v.revision
            limit 1
        ) h
        where o.purchase_parts is null
            or h.recorded_at < o.created_at + make_interval(secs => o.purchase_life_ms / 1000.0)
        union all
        select x.at, x.n, x.what, r.item || ' ' || r.reservation_no, x.detail, x.principal, x.request_id
        from jsonb_array_elements(o.lines) with ordinality as l (line, n)
        cross join lateral (
            select * from stock_reservations v
            where o.reserve and v.tenant_id = o.tenant_id and v.item = l.line ->> 'item'
                and v.reservation_no = o.order_no || '/' || l.n
            offset 0
        ) r
        cross join lateral (
            values (r.created_at, 2, 'reservation', r.quantity || ' reserved', r.principal, r.request_id),
                (r.closed_at, 2001, 'reservation ended', r.quantity || ' ' || r.state,
                    case when r.state <> 'expired' then coalesce(r.closed_principal, r.principal) end,
                    case when r.state <> 'expired' then coalesce(r.closed_request_id, r.request_id) end)
            union all
            select c.changed_at, 2010, 'unsell',
                c.quantity || ' ' || c.change_no || coalesce(': ' || nullif(c.reason, ''), ''), c.principal,
                c.request_id
            from stock_changes c
            where c.kind = 'unsell' and c.tenant_id = o.tenant_id and c.item = r.item
                and c.reservation_no = r.reservation_no
        ) x (at, n, what, detail, principal, request_id)
        where x.at is not null
        union all
        select h.recorded_at, case h.to_state when 'locked' then 3 else 2002 end, 'coupon', o.coupon, h.to_state,
            h.principal, h.request_id
        from (
            select v.coupon_id from coupon_coupons v
            where v.tenant_id = o.tenant_id and v.code = o.coupon
            offset 0
        ) c
        cross join lateral (
            select * from machine_history v
            where v.tenant_id = o.tenant_id and v.instance_id = c.coupon_id and v.cause = o.order_no
            offset 0
        ) h
        union all
        select x.at, x.n, x.what, h.biz_no, audit.decimal(h.amount, o.scale) || ' ' || o.asset || ' ' || x.state,
            x.principal, x.request_id
        from (
            select * from ledger_holds v
            where o.balance_account is not null and v.tenant_id = o.tenant_id and v.biz_no = o.order_no || '/hold'
            offset 0
        ) h
        left join lateral (
            select v.principal, v.request_id from ledger_transfers v
            where h.state = 'captured' and v.tenant_id = o.tenant_id and v.hold_id = h.hold_id
                and v.recorded_at >= h.closed_at
            order by v.transfer_id desc limit 1
        ) c on true
        cross join lateral (
            values (h.created_at, 4, 'hold', 'held', h.principal, h.request_id),
                (h.closed_at, 2003, 'hold ended', h.state, c.principal, c.request_id)
        ) x (at, n, what, state, principal, request_id)
        where x.at is not null
        union all
        select x.at, x.n, 'transfer', x.name, x.type, x.principal, x.request_id
        from (
            select * from ledger_transfers v
            where o.balance_account is not null and v.tenant_id = o.tenant_id and v.biz_no = o.order_no || '/pay'
            offset 0
        ) f
        cross join lateral (
            select f.recorded_at, case when f.hold_id is null then 5 else 2004 end, f.biz_no, f.type, f.principal,
                f.request_id
            union all
            select v.recorded_at, 2011, v.biz_no, v.type, v.principal, v.request_id
            from ledger_transfers v where v.tenant_id = o.tenant_id and v.reverses_id = f.transfer_id
        ) x (at, n, name, type, principal, request_id)
        union all
        -- Other transfers of the calls that created and moved the order, such as points and refunds in an Execute.
        -- Transfers of payments are below.
        select v.recorded_at, case when c.created then 7 else 2012 end, 'transfer', v.biz_no, v.type, v.principal,
            v.request_id
        from (
            select h.request_id, h.recorded_at, bool_or(h.revision = 1) as created
            from machine_history h
            where h.tenant_id = o.tenant_id and h.instance_id = o.order_id and h.actor <> 'timer'
            group by h.request_id, h.recorded_at
            offset 0
        ) c
        cross join lateral (
            select * from ledger_transfers w
            where w.request_id = c.request_id and w.recorded_at = c.recorded_at
            offset 0 -- no tenant here: with it, a plan could use another index than that on request ids
        ) v
        where v.tenant_id = o.tenant_id and not exists (
            select from order_orders p
            where p.tenant_id = o.tenant_id and p.order_no = substring(v.biz_no from '^(.*)/pay$')
                and p.balance_account is not null)
            and (v.reverses_id is null or o.balance_account is null or not exists (
                select from ledger_transfers f
                where f.tenant_id = o.tenant_id and f.transfer_id = v.reverses_id and f.biz_no = o.order_no || '/pay'))
            and not exists (
                select from payment_transactions x
                where x.tenant_id = o.tenant_id and x.gateway = substring(v.biz_no from '^pay/([^/]+)/')
                    and x.transaction_id = substring(v.biz_no from '^pay/[^/]+/(.*)$'))
            and not exists (
                select from payment_refunds x
                where x.tenant_id = o.tenant_id and x.refund_no = substring(v.biz_no from '^refund/(.*)/paid$'))
            and not exists (
                select from payment_flags x
                where x.tenant_id = o.tenant_id
                    and x.flag_id = substring(v.biz_no from '^flag/([0-9]{1,18})$')::bigint)
        union all
        select x.at, x.n, x.what, m.name, x.detail, x.principal, x.request_id
        from (
            -- Messages under the order's numbers.
            select n.biz_no as name, n.biz_no is distinct from v.biz_no or v.accepted_at < o.created_at as repeated, v.*
            from (
                select k.biz_no, k.message_id from notify_names k
                where k.tenant_id = o.tenant_id and k.biz_no >= o.order_no || '/message/'
                    and k.biz_no < o.order_no || '/message0'
                    and substr(k.biz_no, length(o.order_no || '/message/') + 1) ~ '^[0-9]+$' -- not of another order
                offset 0
            ) n
            join notify_messages v on v.tenant_id = o.tenant_id and v.message_id = n.message_id
            union all
            -- Messages of the calls that created and moved the order. A call about another order may record the move of
            -- a timer: then only the published event of that move counts.
            select coalesce(v.biz_no, v.message_id::text collate "C"), false, v.*
            from (
                select h.request_id, h.recorded_at, bool_and(h.actor = 'timer') as by_timer, min(h.machine) as machine,
                    min(h.version) as version, max(h.to_state) as to_state
                from machine_history h where h.tenant_id = o.tenant_id and h.instance_id = o.order_id
                group by h.request_id, h.recorded_at
                offset 0
            ) c
            cross join lateral (
                select * from notify_messages w
                where w.request_id = c.request_id and w.accepted_at = c.recorded_at
                    and w.month = date_trunc('month', c.recorded_at at time zone 'UTC')::date
                offset 0 -- no tenant here: with it, a plan could use the primary key
            ) v
            where v.tenant_id = o.tenant_id
                and not exists (
                    select from order_orders p
                    where p.tenant_id = o.tenant_id and p.order_no = substring(v.biz_no from '^(.*)/message/[0-9]+$'))
                and (not c.by_timer or v.channel = 'webhook' and exists (
                    select from machine_definitions d
                    where d.tenant_id = o.tenant_id and d.machine = c.machine and d.version = c.version
                        and d.definition -> 'moves' @> jsonb_build_array(
                            jsonb_build_object('to', c.to_state, 'publish', v.business_type))))
        ) m
        cross join lateral (
            select case when m.repeated then greatest(o.created_at, m.accepted_at) else m.accepted_at end, 3000,
                case when m.repeated then 'message repeated' else 'message' end,
                concat_ws(' ', m.channel, nullif(m.business_type, ''), m.recipient_hint) || case when m.repeated
                    then ': repeat of ' || coalesce(m.biz_no, m.message_id::text) else '' end,
                case when m.repeated then o.principal else m.principal end,
                case when m.repeated then o.request_id else m.request_id end
            union all
            select e.at, 3001, 'message event', concat_ws(' ', e.kind, e.provider, e.failure_code), e.principal,
                e.request_id
            from notify_events e
            where not m.repeated and e.tenant_id = o.tenant_id and e.message_id = m.message_id and e.month = m.month
        ) x (at, n, what, detail, principal, request_id)
    ) s
    left join access_tenants t on t.tenant_id = o.tenant_id
    union all
    select o.tenant_id, t.name as tenant, o.order_no, s.at, s.n::smallint as n, s.what, s.name, s.detail, s.principal,
        s.request_id
    from order_orders o
    cross join lateral (
        select v.payment_id, v.out_trade_no from payment_payments v
        where v.tenant_id = o.tenant_id and v.order_no = o.order_no and v.order_no <> ''
        offset 0
    ) p
    cross join lateral (
        select h.recorded_at as at, 100 + least(h.revision, 800) as n, 'payment'::text as what, p.out_trade_no as name,
            h.to_state || ' ' || h.cause as detail, h.principal, h.request_id
        from machine_history h where h.tenant_id = o.tenant_id and h.instance_id = p.payment_id
        union all
        select n.recorded_at, 50, 'notice', n.out_trade_no,
            n.kind || ' ' || n.effect || coalesce(': ' || n.detail, ''),
            null, n.request_id
        from payment_notices n
        where n.tenant_id = o.tenant_id and n.out_trade_no = p.out_trade_no and n.out_trade_no <> ''
        union all
        select f.recorded_at, 60, 'transfer', f.biz_no, f.type, f.principal, f.request_id
        from (
            select v.gateway, v.transaction_id from payment_transactions v
            where v.tenant_id = o.tenant_id and v.out_trade_no = p.out_trade_no and v.out_trade_no <> ''
            offset 0
        ) x
        cross join lateral (
            select * from ledger_transfers v
            where v.tenant_id = o.tenant_id and v.biz_no = 'pay/' || x.gateway || '/' || x.transaction_id
            offset 0
        ) f
        union all
        select x.at, x.n, x.what, x.name, x.detail, x.principal, x.request_id
        from (
            select * from payment_refunds v
            where v.tenant_id = o.tenant_id and v.out_trade_no = p.out_trade_no and v.out_trade_no <> ''
            offset 0
        ) r
        cross join lateral (
            select h.recorded_at, 4000 + least(h.revision, 1000), 'refund', r.refund_no,
                audit.decimal(r.amount, r.scale) || ' ' || r.currency || ' ' || h.to_state || ' ' || h.cause,
                h.principal,
                h.request_id
            from machine_history h where h.tenant_id = o.tenant_id and h.instance_id = r.refund_id
            union all
            select y.at, y.n, y.what, h.biz_no, audit.decimal(h.amount, r.scale) || ' ' || r.asset || ' ' || y.state,
                y.principal, y.request_id
            from ledger_holds h
            cross join lateral (
                values (h.created_at, 3999, 'hold', 'held', h.principal, h.request_id),
                    (h.closed_at, 5001, 'hold ended', h.state, null, null)
            ) y (at, n, what, state, principal, request_id)
            where h.tenant_id = o.tenant_id and h.biz_no = 'refund/' || r.refund_no and y.at is not null
            union all
            select v.recorded_at, 5002, 'transfer', v.biz_no, v.type, v.principal, v.request_id
            from ledger_transfers v
            where v.tenant_id = o.tenant_id and v.biz_no = 'refund/' || r.refund_no || '/paid'
        ) x (at, n, what, name, detail, principal, request_id)
        union all
        select x.at, x.n, x.what, x.name, x.detail, x.principal, x.request_id
        from (
            select * from payment_flags v
            where v.tenant_id = o.tenant_id and v.out_trade_no = p.out_trade_no and v.out_trade_no <> ''
            offset 0
        ) f
        cross join lateral (
            values (f.created_at, 3500, 'flag', f.out_trade_no,
                    f.kind || ' ' || audit.decimal(f.amount, f.scale) || ' ' || f.currency, null, f.request_id),
                (f.resolved_at, 3501, 'flag resolved', f.out_trade_no, f.resolution || coalesce(': ' || f.note, ''),
                    f.resolved_by, f.resolved_request_id)
            union all
            select v.recorded_at, 3502, 'transfer', v.biz_no, v.type, v.principal, v.request_id
            from ledger_transfers v where v.tenant_id = o.tenant_id and v.biz_no = 'flag/' || f.flag_id
        ) x (at, n, what, name, detail, principal, request_id)
        where x.at is not null
    ) s
    left join access_tenants t on t.tenant_id = o.tenant_id
)
select s.tenant, s.order_no, s.at, s.n, s.what, s.name, s.detail || coalesce(': ' || p.postings, '') as detail,
    s.principal, s.request_id
from story s
left join lateral (
    select string_agg(format('%s to %s %s %s', f.code, k.code, audit.decimal(c.amount, k.scale), c.asset), ', '
        order by c.posting) as postings
    from ledger_transfers x
    join ledger_entries c on c.tenant_id = x.tenant_id and c.transfer_id = x.transfer_id and c.amount > 0
    join ledger_accounts k on k.tenant_id = c.tenant_id and k.account_id = c.account_id
    join ledger_entries d
        on d.tenant_id = x.tenant_id and d.transfer_id = x.transfer_id and d.posting = c.posting and d.amount < 0
    join ledger_accounts f on f.tenant_id = d.tenant_id and f.account_id = d.account_id
    where s.what = 'transfer' and x.tenant_id = s.tenant_id and x.biz_no = s.name
) p on true;
comment on view audit.order_story is
    'Everything that happened to an order: its submit token, its moves, its reservations and their unsells, its '
    'coupon, its hold, its transfer, the claim on its purchase, its messages and their events, and its payments. '
    'Select one order by tenant and order_no, ordered by at, n. Messages are those under the order''s numbers, and all '
    'others of the calls that created and moved it: a call that moved several orders has its messages in the story of '
    'each. Transfers are the order''s own, those of its payments, refunds and flags, and all others of the calls that '
    'created and moved it. Not here: calls that changed nothing, such as repeats and refusals; and, because no index '
    'finds them, messages with a number of their own that were suppressed as repeats, and messages and transfers of '
    'those calls that were recorded while the database''s clock was behind recorded times.';
comment on column audit.order_story.tenant is 'Name of the tenant.';
comment on column audit.order_story.order_no is 'Number of the order.';
comment on column audit.order_story.at is 'When it happened.';
comment on column audit.order_story.n is
    'Rank of rows of the same time: the token, the creation, what was made with it, payments, moves, what ended with '
    'them, messages, flags, refunds.';
comment on column audit.order_story.what is
    'token spent: the submit token of the call that created it; move: of the order, or its creation; purchase: '
    'claimed by its creation; purchase ended: that claim was given back; sale unit: which the buyer won; sale unit '
    'ended: it was given back; reservation; reservation ended; unsell: sold units came back; '
    'coupon: locked, given back or used; hold, also that of a refund; hold ended; transfer, also its reversal; '
    'message: accepted; message repeated: a message of the order''s creation that was suppressed, because it repeats '
    'an earlier one; message event: of a message; payment, refund: a move of it, or its creation; notice: of a '
    'gateway; flag; flag resolved.';
comment on column audit.order_story.name is
    'SHA-256 of the token; state that the order entered; parts of the purchase, or the sale; item and number of the '
    'reservation; code of the coupon; biz_no of the hold or transfer; biz_no of the message, or its number if it has '
    'none; out_trade_no of the payment, notice or flag; refund_no of the refund.';
comment on column audit.order_story.detail is
    'Purpose of the token, if it has one and is not forgotten; cause, reason and inputs of the move, and the amount of '
    'the order at its creation; life of the purchase, '
    'or which unit of the buyer of a sale; quantity and state of the reservation; quantity, number and reason of the '
    'unsell; state of the coupon; amount and state of the hold; type and postings of the transfer; channel, business '
    'type and '
    'masked recipient of the message, and the message that it repeats; kind, provider and code of the event; state '
    'and cause of the payment; amount, currency, state and cause of the refund; kind, effect and detail of the '
    'notice; kind, amount and currency of the flag, or its resolution and note.';
comment on column audit.order_story.principal is
    'Principal of the caller; null where it is not recorded: of moves by timers, notices, attempts to send, flags that '
    'are raised, reservations that expired, and holds that were released or expired.';
comment on column audit.order_story.request_id is
    'X-Request-ID of the call; null where it is not recorded: of reservations that expired, attempts to send, and '
    'holds that were released or expired. If the order was cancelled at the same time, its move has the call.';
grant select on audit.order_story to ledgerd_audit;
reset role;

-- +goose Down
drop view audit.order_story;
drop view audit.requests;
