-- Every business key is the concatenation of its parts as netstrings (length in bytes, colon, part, comma), or the
-- SHA-256 of these if they are longer than 1,024 bytes.
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
