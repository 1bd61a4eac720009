-- Every tenant that has rows, with its name if it has one. Skips from tenant to tenant in the indexes.
with recursive t(tenant_id) as (
    select -2147483648
    union all
    select n.tenant_id
    from t
    cross join lateral (
        select least(
            (select min(tenant_id) from ledger_accounts where tenant_id > t.tenant_id),
            (select min(tenant_id) from ledger_entries where tenant_id > t.tenant_id),
            (select min(tenant_id) from ledger_transfers where tenant_id > t.tenant_id),
            (select min(tenant_id) from ledger_holds where tenant_id > t.tenant_id)
        ) as tenant_id
    ) n
    where n.tenant_id is not null
)
select t.tenant_id, coalesce(a.name, '') as name
from t
left join access_tenants a on a.tenant_id = t.tenant_id
where t.tenant_id > -2147483648
order by t.tenant_id
