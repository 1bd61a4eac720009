-- The baseline of checkouts: one hand-written PL/pgSQL function per step. Its tables are copies of the service's: same
-- columns, keys, indexes, CHECKs, fill factor and rows, without triggers. The names are the same too, so that the same
-- verification runs on both. Contended rows are locked last, accounts in the order of their codes.
create schema bench;
do $$
declare
    t record;
begin
    for t in
        select relname, array_to_string(coalesce(reloptions, '{fillfactor=100}'), ', ') as options from pg_class
        where relkind = 'r' and relnamespace = 'public'::regnamespace and relname in ('order_orders',
            'machine_instances', 'machine_history', 'stock_items', 'stock_reservations', 'payment_payments',
            'payment_calls', 'payment_notices', 'payment_notice_names', 'payment_transactions', 'ledger_accounts',
            'ledger_transfers', 'ledger_entries')
    loop
        execute format('create table bench.%I (like public.%1$I including all) with (%2$s)', t.relname, t.options);
        if t.relname in ('stock_items', 'ledger_accounts') then
            execute format('insert into bench.%I select * from public.%1$I', t.relname);
        end if;
    end loop;
end
$$;
create sequence bench.ids as bigint cache 1000;

create function bench.move(tenant integer, of text, no text, was text, now_is text, why text, at timestamptz)
    returns void language plpgsql set search_path = bench, pg_catalog as $$
declare
    id bigint;
    number bigint;
begin
    update machine_instances set state = now_is, came_from = was, revision = revision + 1, cause = why, timer_ms = null,
        timer_at = null, timer_to = null, changed_at = at
    where tenant_id = tenant and machine = of and key = no and state = was
    returning instance_id, revision into id, number;
    if not found then
        raise exception '% % is not %', of, no, was;
    end if;
    insert into machine_history (tenant_id, instance_id, revision, machine, key, version, from_state, to_state, actor,
        cause, principal, request_id, recorded_at)
    values (tenant, id, number, of, no, 1, was, now_is, 'caller', why, 'bench', no, at);
end
$$;

create function bench.make_instance(tenant integer, of text, no text, id bigint, state text, owner text, at timestamptz,
    ends_at timestamptz) returns void language plpgsql set search_path = bench, pg_catalog as $$
begin
    insert into machine_instances (tenant_id, machine, key, instance_id, version, state, came_from, revision, cause,
        owner, timer_ms, timer_at, timer_to, created_at, changed_at)
    values (tenant, of, no, id, 1, state, '', 1, 'creation', owner, case when ends_at is not null then 1800000 end,
        ends_at, case when ends_at is not null then 'cancelled' end, at, at);
    insert into machine_history (tenant_id, instance_id, revision, machine, key, version, from_state, to_state, actor,
        cause, principal, request_id, recorded_at)
    values (tenant, id, 1, of, no, 1, '', state, 'caller', 'creation', 'bench', no, at);
end
$$;

create function bench.create_order(tenant integer, no text, of_item text, seller text) returns void
    language plpgsql set search_path = bench, pg_catalog as $$
declare
    at timestamptz := clock_timestamp();
    ends_at timestamptz := at + interval '30 minutes';
    id bigint := nextval('ids');
begin
    insert into order_orders (tenant_id, order_no, order_id, machine, subject, asset, scale, amount, lines, payee,
        life_ms, reserve, principal, request_id, created_at)
    values (tenant, no, id, 'order', 'buyer', 'CNY', 2, 200,
        jsonb_build_array(jsonb_build_object('item', of_item, 'quantity', 1)), seller, 1800000, true, 'bench', no, at);
    perform make_instance(tenant, 'order', no, id, 'awaiting_payment', 'buyer', at, ends_at);
    insert into stock_reservations (tenant_id, item, reservation_no, reservation_id, quantity, unsold, segment, state,
        ref, life_ms, created_at, expires_at, principal, request_id)
    values (tenant, of_item, no || '/1', nextval('ids'), 1, 0, 0, 'reserved', no, 1800000, at, ends_at, 'bench', no);
    update stock_items set available = available - 1, reserved = reserved + 1, version = version + 1,
        next_expiry_at = least(next_expiry_at, ends_at)
    where tenant_id = tenant and item = of_item and segment = 0 and available >= 1;
    if not found then
        raise exception '% is sold out', of_item;
    end if;
end
$$;

create function bench.create_payment(tenant integer, no text) returns void
    language plpgsql set search_path = bench, pg_catalog as $$
declare
    at timestamptz := clock_timestamp();
    id bigint := nextval('ids');
begin
    perform from machine_instances
    where tenant_id = tenant and machine = 'order' and key = no and state = 'awaiting_payment' for update;
    if not found then
        raise exception 'order % cannot be paid', no;
    end if;
    insert into payment_payments (tenant_id, out_trade_no, payment_id, order_no, gateway, pay_type, attempt, asset,
        scale, amount, payee, expires_at, principal, request_id, created_at)
    select tenant_id, no, id, no, 'standard', '', 1, asset, scale, amount, payee,
        created_at + life_ms * interval '1 millisecond', 'bench', no, at
    from order_orders where tenant_id = tenant and order_no = no;
    perform make_instance(tenant, 'payment', no, id, 'created', no, at, null);
    insert into payment_calls (tenant_id, subject, number, gateway, call, next_call_at)
    values (tenant, 'payment', no, 'standard', 'submit', at);
end
$$;

create function bench.note(tenant integer, no text, said text, name text, transaction text, said_body bytea,
    said_headers jsonb, at timestamptz) returns bigint language plpgsql set search_path = bench, pg_catalog as $$
declare
    id bigint := nextval('ids');
begin
    insert into payment_notice_names values (tenant, 'standard', name, id);
    insert into payment_notices (tenant_id, notice_id, gateway, notify_id, callback, kind, out_trade_no, transaction_id,
        amount, currency, asset, fields, effect, headers, body, request_id, occurred_at, recorded_at)
    values (tenant, id, 'standard', name, said_headers is not null, said, no, transaction,
        case when transaction is not null then '2' end, case when transaction is not null then 'CNY' end,
        case when transaction is not null then 'CNY' end,
        jsonb_build_object('At', at, 'ID', name, 'Code', '', 'Kind', said, 'Text', '', 'Amount',
            jsonb_build_object('Coef', '2', 'Scale', 0), 'Foreign', '', 'Currency', 'CNY', 'RefundNo', '', 'OutTradeNo',
            no, 'TransactionID', transaction, 'GatewayRefundID', ''),
        'applied', said_headers, said_body, no, case when transaction is not null then at end, at);
    return id;
end
$$;

create function bench.submitted(tenant integer, no text, said jsonb) returns void
    language plpgsql set search_path = bench, pg_catalog as $$
declare
    at timestamptz := clock_timestamp();
    name text := 'create/pending/' || no || '///';
begin
    perform move(tenant, 'payment', no, 'created', 'submitted', name, at);
    perform note(tenant, no, 'pending', name, null, '', null, at);
    update payment_payments set credential = said where tenant_id = tenant and out_trade_no = no;
    update payment_calls set call = 'query', next_call_at = at + interval '5 seconds'
    where tenant_id = tenant and subject = 'payment' and number = no;
end
$$;

create function bench.paid(tenant integer, no text, transaction text, said_body text, said_headers jsonb) returns void
    language plpgsql set search_path = bench, pg_catalog as $$
declare
    at timestamptz := clock_timestamp();
    notice bigint;
    transfer bigint := nextval('ids');
    p record;
    line record;
    payer record;
    seller record;
begin
    perform move(tenant, 'payment', no, 'submitted', 'succeeded', transaction, at);
    perform move(tenant, 'order', no, 'awaiting_payment', 'paid', no, at);
    notice := note(tenant, no, 'paid', 'paid_' || no, transaction, convert_to(said_body, 'UTF8'), said_headers, at);
    update payment_payments set transaction_id = transaction, paid_at = at
    where tenant_id = tenant and out_trade_no = no
    returning amount, scale, asset, payee into strict p;
    insert into payment_transactions (tenant_id, gateway, transaction_id, out_trade_no, notice_id, currency, asset,
        scale, amount, account, recorded_at)
    values (tenant, 'standard', transaction, no, notice, p.asset, p.asset, p.scale, p.amount, p.payee, at);
    delete from payment_calls where tenant_id = tenant and subject = 'payment' and number = no;
    insert into ledger_transfers (tenant_id, transfer_id, biz_no, type, recorded_at, principal, request_id)
    values (tenant, transfer, 'pay/standard/' || transaction, 'payment', at, 'bench', no);
    select x ->> 'item' as item into strict line from order_orders o, jsonb_array_elements(o.lines) x
    where o.tenant_id = tenant and o.order_no = no;
    update stock_reservations set state = 'sold', closed_at = at, closed_request_id = no
    where tenant_id = tenant and item = line.item and reservation_no = no || '/1' and state = 'reserved';
    if not found then
        raise exception 'the unit of order % is not reserved', no;
    end if;
    update stock_items set reserved = reserved - 1, sold = sold + 1, version = version + 1
    where tenant_id = tenant and item = line.item and segment = 0;
    update ledger_accounts set balance = balance - p.amount, version = version + 1, last_entry_at = at
    where tenant_id = tenant and code = 'gateway' and asset = p.asset
    returning account_id, balance, version into strict payer;
    update ledger_accounts set balance = balance + p.amount, version = version + 1, last_entry_at = at
    where tenant_id = tenant and code = p.payee and asset = p.asset
    returning account_id, balance, version into strict seller;
    insert into ledger_entries (tenant_id, account_id, version, transfer_id, recorded_at, posting, asset, amount,
        balance_before, balance_after)
    values (tenant, payer.account_id, payer.version, transfer, at, 0, p.asset, -p.amount, payer.balance + p.amount,
            payer.balance),
        (tenant, seller.account_id, seller.version, transfer, at, 0, p.asset, p.amount, seller.balance - p.amount,
            seller.balance);
end
$$;
