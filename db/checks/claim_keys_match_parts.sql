-- Every business key consists of its parts: each after its length in bytes and a colon, followed by a comma.
select c.tenant_id, c.scope, c.claim_id, c.key, k.key as key_expected
from claim_keys c
cross join lateral (
    select string_agg(octet_length(p.part) || ':' || p.part || ',', '' order by p.place) as key
    from jsonb_array_elements_text(c.parts) with ordinality as p (part, place)
) k
where c.parts is not null and c.key is distinct from k.key
