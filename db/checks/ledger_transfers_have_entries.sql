-- Every transfer has a debit and a credit of the same amount for each of its postings.
select t.tenant_id, t.transfer_id, t.biz_no, p.entries, 2 * p.postings as entries_expected, p.postings,
    p.last_posting + 1 as postings_expected, p.uneven, 0 as uneven_expected
from ledger_transfers t
cross join lateral (
    select coalesce(sum(s.entries), 0) as entries, count(*) as postings, coalesce(max(s.posting), 0) as last_posting,
        count(*) filter (where s.entries <> 2 or s.moved <> 0 or s.assets <> 1) as uneven
    from (
        select e.posting, count(*) as entries, sum(e.amount) as moved, count(distinct e.asset) as assets
        from ledger_entries e
        where e.tenant_id = t.tenant_id and e.transfer_id = t.transfer_id
        group by e.posting
    ) s
) p
where p.postings = 0 or p.postings <> p.last_posting + 1 or p.uneven > 0
