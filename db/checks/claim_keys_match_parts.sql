-- Every business key consists of its parts, each after its length in bytes and a colon, followed by a comma; or, beyond
-- 1,024 bytes, it is their SHA-256.
select c.tenant_id, c.scope, c.claim_id, c.key, k.key as key_expected
from claim_keys c
cross join lateral (
    select case when octet_length(p.key) <= 1024 then p.key
        else 'sha256:' || encode(sha256(convert_to(p.key, 'UTF8')), 'hex') end as key
    from (
        select string_agg(octet_length(p.part) || ':' || p.part || ',', '' order by p.place) as key
        from jsonb_array_elements_text(c.parts) with ordinality as p (part, place)
    ) p
) k
where c.parts is not null and c.key is distinct from k.key
