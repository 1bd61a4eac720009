-- Statements on templates, in batches and for reads. Arrays have the same length; n is a position in them, from 1.
-- The tenant is passed in an array and the index is reached by a lateral sub-select, so that a generic plan made on
-- an empty table stays right on a full one.

-- name: TemplateFind :many
-- Finds the version to send: the given one, or the newest in the first existing locale of those requested, which are
-- separated by commas, or else in the default locale.
select u.n::integer as n, v.version, v.locale, v.definition_hash
from (
    select generate_subscripts(@names::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@channels::text[]) as channel, unnest(@names::text[]) as name, unnest(@locales::text[]) as locales,
        unnest(@versions::integer[]) as version
) u
cross join lateral (
    select m.default_locale, m.locales, m.versions
    from notify_templates m
    where m.tenant_id = u.tenant_id and m.channel = u.channel and m.name = u.name and m.deleted_at is null
    offset 0
) t
cross join lateral (
    select coalesce(nullif(u.version, 0), (
        select t.versions[array_position(t.locales, w.locale)]
        from unnest(string_to_array(u.locales, ',') || t.default_locale) with ordinality as w (locale, place)
        where w.locale = any(t.locales)
        order by w.place
        limit 1
    )) as version
    offset 0
) c
cross join lateral (
    select s.version, s.locale, s.definition_hash
    from notify_template_versions s
    where s.tenant_id = u.tenant_id and s.channel = u.channel and s.name = u.name and s.version = c.version
    offset 0
) v;

-- name: TemplateDefinition :many
-- Contents of versions.
select u.n::integer as n, v.definition
from (
    select generate_subscripts(@names::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@channels::text[]) as channel, unnest(@names::text[]) as name, unnest(@versions::integer[]) as version
) u
cross join lateral (
    select s.definition
    from notify_template_versions s
    where s.tenant_id = u.tenant_id and s.channel = u.channel and s.name = u.name and s.version = u.version
    offset 0
) v;

-- name: TemplateLock :many
-- Locks templates in the order of the arrays, which callers sort by tenant, channel and name.
select u.n::integer as n, t.default_locale, t.last_version, t.locales, t.versions, t.changed_at, t.deleted_at
from (
    select generate_subscripts(@names::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@channels::text[]) as channel, unnest(@names::text[]) as name
) u
cross join lateral (
    select m.default_locale, m.last_version, m.locales, m.versions, m.changed_at, m.deleted_at
    from notify_templates m
    where m.tenant_id = u.tenant_id and m.channel = u.channel and m.name = u.name
    offset 0
    for no key update
) t;

-- name: TemplateHashes :many
-- Hashes of the present contents of locked templates, in all their locales.
select u.n::integer as n, v.version, v.definition_hash
from (
    select generate_subscripts(@names::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@channels::text[]) as channel, unnest(@names::text[]) as name
) u
cross join lateral (
    select m.versions from notify_templates m
    where m.tenant_id = u.tenant_id and m.channel = u.channel and m.name = u.name
    offset 0
) t
cross join lateral (
    select s.version, s.definition_hash
    from unnest(t.versions) as w (version)
    cross join lateral (
        select x.version, x.definition_hash
        from notify_template_versions x
        where x.tenant_id = u.tenant_id and x.channel = u.channel and x.name = u.name and x.version = w.version
        offset 0
    ) s
) v;

-- name: TemplateInsert :exec
insert into notify_templates (tenant_id, channel, name, default_locale, last_version, locales, versions, changed_at,
    deleted_at)
select u.tenant_id, u.channel, u.name, u.default_locale, u.last_version, string_to_array(u.locales, ','),
    string_to_array(u.versions, ',')::integer[], u.changed_at, nullif(u.deleted_at, '0001-01-01 00:00:00+00')
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@channels::text[]) as channel,
        unnest(@names::text[]) as name, unnest(@default_locales::text[]) as default_locale,
        unnest(@last_versions::integer[]) as last_version, unnest(@locales::text[]) as locales,
        unnest(@versions::text[]) as versions, unnest(@changed_at::timestamptz[]) as changed_at,
        unnest(@deleted_at::timestamptz[]) as deleted_at
) u
order by u.tenant_id, u.channel collate "C", u.name collate "C";

-- name: TemplateUpdate :exec
-- Updates locked templates.
with updated as (
    update notify_templates m
    set default_locale = y.default_locale, last_version = y.last_version, locales = string_to_array(y.locales, ','),
        versions = string_to_array(y.versions, ',')::integer[], changed_at = y.changed_at,
        deleted_at = nullif(y.deleted_at, '0001-01-01 00:00:00+00')
    from (
        select l.ctid as tid, u.*
        from (
            select unnest(@tenants::integer[]) as tenant_id, unnest(@channels::text[]) as channel,
                unnest(@names::text[]) as name, unnest(@default_locales::text[]) as default_locale,
                unnest(@last_versions::integer[]) as last_version, unnest(@locales::text[]) as locales,
                unnest(@versions::text[]) as versions, unnest(@changed_at::timestamptz[]) as changed_at,
                unnest(@deleted_at::timestamptz[]) as deleted_at
        ) u
        cross join lateral (
            select x.ctid from notify_templates x
            where x.tenant_id = u.tenant_id and x.channel = u.channel and x.name = u.name
            offset 0
        ) l
    ) y
    where m.ctid = y.tid
    returning 1
)
select commit_expect(count(*), cardinality(@names::text[])) from updated;

-- name: TemplateVersionInsert :exec
insert into notify_template_versions (tenant_id, channel, name, version, locale, definition, definition_hash,
    principal, request_id, created_at)
select u.tenant_id, u.channel, u.name, u.version, u.locale, u.definition::jsonb, u.definition_hash, u.principal,
    u.request_id, @now::timestamptz
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@channels::text[]) as channel,
        unnest(@names::text[]) as name, unnest(@versions::integer[]) as version, unnest(@locales::text[]) as locale,
        unnest(@definitions::text[]) as definition, unnest(@definition_hashes::bytea[]) as definition_hash,
        unnest(@principals::text[]) as principal, unnest(@request_ids::text[]) as request_id
) u
order by u.tenant_id, u.channel collate "C", u.name collate "C", u.version;

-- name: TemplateGet :many
-- A template with its present versions, or with a given version.
select m.default_locale, m.last_version, m.changed_at, m.deleted_at, v.version, v.locale, v.definition, v.principal,
    v.request_id, v.created_at
from notify_templates m
join notify_template_versions v on v.tenant_id = m.tenant_id and v.channel = m.channel and v.name = m.name
where m.tenant_id = @tenant_id and m.channel = @channel and m.name = @name
    and (v.version = @version::integer or @version::integer = 0 and m.deleted_at is null
        and v.version = any(m.versions))
order by v.locale;

-- name: TemplatePage :many
-- Templates by channel and name, after a given one.
select m.channel, m.name, m.default_locale, m.last_version, m.locales, m.versions, m.changed_at
from notify_templates m
where m.tenant_id = @tenant_id and m.deleted_at is null and (m.channel, m.name) > (@after_channel::text,
    @after_name::text)
    and (@channel::text = '' or m.channel = @channel::text)
order by m.channel, m.name
limit @size::integer;
