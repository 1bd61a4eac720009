-- Counts after a run, which must all be equal: paid orders, succeeded payments, sold units, and transfers with two
-- entries. The last row repeats the number of paid orders, or is -1 if the sums of all runs disagree: sold units of
-- items and reservations, balances and zero, or the gateway's account and its transactions.
with paid as (
    select key from machine_instances
    where tenant_id = $1 and machine = 'order' and state = 'paid' and key >= $2 and key < $2 || '~'
), wrong as (
    select (select sum(sold) from stock_items where tenant_id = $1)
            <> (select count(*) from stock_reservations where tenant_id = $1 and state = 'sold')
        or (select sum(balance) from ledger_accounts where tenant_id = $1) <> 0
        or (select -balance from ledger_accounts where tenant_id = $1 and code = 'gateway')
            <> (select sum(amount) from payment_transactions where tenant_id = $1) as found
)
select 'orders paid', count(*) from paid
union all
select 'payments succeeded', count(*) from machine_instances
where tenant_id = $1 and machine = 'payment' and state = 'succeeded' and key >= $2 and key < $2 || '~'
union all
select 'units sold', count(*) from paid join stock_reservations r on r.tenant_id = $1 and r.reservation_no = key || '/1'
    and r.state = 'sold'
union all
select 'transfers with their entries', count(*) from (
    select 1 from paid
    join ledger_transfers t on t.tenant_id = $1 and t.biz_no = 'pay/standard/t-' || key
    join ledger_entries e on e.tenant_id = $1 and e.transfer_id = t.transfer_id
    group by key having count(*) = 2 and sum(e.amount) = 0
) x
union all
select 'sums that agree', case when found then -1 else (select count(*) from paid) end from wrong
