-- Reads of transfers, entries and holds. Where no index serves a filter, a page reads a limited number of rows, and
-- the next page continues there.

-- name: TransferPage :many
-- Transfers before an id that match the filter, among a limited number of rows.
select t.transfer_id, t.biz_no, t.type, t.recorded_at, t.effective_at, t.reverses_id, t.hold_id, t.forms, t.metadata,
    t.request_id
from (
    select l.transfer_id, l.biz_no, l.type, l.recorded_at, l.effective_at, l.reverses_id, l.hold_id, l.forms,
        l.metadata, l.request_id
    from ledger_transfers l
    where l.tenant_id = @tenant_id::integer and l.transfer_id < @before::bigint
    order by l.transfer_id desc
    limit @scan::integer
) t
where (@only_type::text = '' or t.type = @only_type::text)
    and t.recorded_at >= @start_at::timestamptz and t.recorded_at < @end_at::timestamptz
    and coalesce(t.metadata, '{}') @> @only_metadata::jsonb
order by t.transfer_id desc
limit @count::integer;

-- name: TransferBatchBefore :one
-- Greatest batch number below a given one that was recorded in a period, 0 for none: no transfer of the period has an
-- id between them.
select commit_batch_before(@below::bigint, @start_at::timestamptz, @end_at::timestamptz)::bigint as batch_id;

-- name: TransferPageEnd :one
-- How many rows a page read, and the last one of them.
select count(*) as scanned, coalesce(min(s.transfer_id), 0)::bigint as last
from (
    select l.transfer_id from ledger_transfers l
    where l.tenant_id = @tenant_id::integer and l.transfer_id < @before::bigint
    order by l.transfer_id desc
    limit @scan::integer
) s;

-- name: VersionRange :one
-- Versions of the last entries recorded at or before two times.
select ledger_version_at(@tenant_id::integer, @account_id::bigint, @low_at::timestamptz)::bigint as low,
    ledger_version_at(@tenant_id::integer, @account_id::bigint, @high_at::timestamptz)::bigint as high;

-- name: EntryPage :many
-- Entries of an account with versions in (low, high], with the columns of their transfers that a statement shows.
-- direction is 1, or -1 for newest first.
select e.version, e.transfer_id, e.posting, e.amount, e.balance_before, e.balance_after, e.recorded_at, e.effective_at,
    t.biz_no, t.type, t.metadata
from (
    select l.version, l.transfer_id, l.posting, l.amount, l.balance_before, l.balance_after, l.recorded_at,
        l.effective_at
    from ledger_entries l
    where l.tenant_id = @tenant_id::integer and l.account_id = @account_id::bigint
        and l.version > @low::bigint and l.version <= @high::bigint
    offset 0
) e
cross join lateral (
    select l.biz_no, l.type, l.metadata from ledger_transfers l
    where l.tenant_id = @tenant_id::integer and l.transfer_id = e.transfer_id offset 0
) t
where @only_type::text = '' or t.type = @only_type::text
order by e.version * @direction::bigint
limit @count::integer;

-- name: HoldPage :many
-- Holds before an id that match the filter, among a limited number of rows.
select h.hold_id, h.biz_no, h.account_id, a.code, a.asset, a.scale, h.to_code, h.form, h.amount, h.captured, h.state,
    h.life_ms, h.expires_at, h.created_at, h.closed_at, h.metadata, h.request_id
from (
    select l.hold_id, l.biz_no, l.account_id, l.to_code, l.form, l.amount, l.captured, l.state, l.life_ms, l.expires_at,
        l.created_at, l.closed_at, l.metadata, l.request_id
    from ledger_holds l
    where l.tenant_id = @tenant_id::integer and l.hold_id < @before::bigint
    order by l.hold_id desc
    limit @scan::integer
) h
cross join lateral (
    select l.code, l.asset, l.scale from ledger_accounts l
    where l.tenant_id = @tenant_id::integer and l.account_id = h.account_id offset 0
) a
where (@only_state::text = '' or h.state = @only_state::text)
    and (@only_from::text = '' or h.account_id in (
        select l.account_id from ledger_accounts l where l.tenant_id = @tenant_id::integer
            and l.code = @only_from::text))
order by h.hold_id desc
limit @count::integer;

-- name: HoldPageEnd :one
-- How many rows a page read, and the last one of them.
select count(*) as scanned, coalesce(min(s.hold_id), 0)::bigint as last
from (
    select l.hold_id from ledger_holds l
    where l.tenant_id = @tenant_id::integer and l.hold_id < @before::bigint
    order by l.hold_id desc
    limit @scan::integer
) s;

-- name: HoldPageOpen :many
-- Open holds of the accounts of a code, before an id. An index serves these.
select h.hold_id, h.biz_no, h.account_id, a.code, a.asset, a.scale, h.to_code, h.form, h.amount, h.captured, h.state,
    h.life_ms, h.expires_at, h.created_at, h.closed_at, h.metadata, h.request_id
from ledger_accounts a
cross join lateral (
    select l.hold_id, l.biz_no, l.account_id, l.to_code, l.form, l.amount, l.captured, l.state, l.life_ms, l.expires_at,
        l.created_at, l.closed_at, l.metadata, l.request_id
    from ledger_holds l
    where l.tenant_id = a.tenant_id and l.account_id = a.account_id and l.state = 'held' and l.hold_id < @before::bigint
    offset 0
) h
where a.tenant_id = @tenant_id::integer and a.code = @only_from::text
order by h.hold_id desc
limit @count::integer;
