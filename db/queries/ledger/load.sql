-- Reads of the ledger in a batch. Arrays have the same length; n is a position in them, from 1. The tenant is passed
-- in an array and the index is reached by a lateral sub-select with offset 0, so that a generic plan made on an empty
-- table stays right on a full one.

-- name: AccountLock :many
-- Locks accounts in the order of the arrays, which callers sort by tenant, code and asset.
select u.n::integer as n, a.account_id, a.scale, a.kind, a.state, a.balance, a.held, a.min_balance, a.max_balance,
    a.version, a.last_entry_at, a.next_expiry_at, a.xmin, a.ctid
from (
    select generate_subscripts(@codes::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@codes::text[]) as code, unnest(@assets::text[]) as asset
) u
cross join lateral (
    select l.account_id, l.scale, l.kind, l.state, l.balance, l.held, l.min_balance, l.max_balance, l.version,
        l.last_entry_at, l.next_expiry_at, l.xmin, l.ctid
    from ledger_accounts l
    where l.tenant_id = u.tenant_id and l.code = u.code and l.asset = u.asset
    offset 0
    for no key update
) a;

-- name: AccountLookup :many
-- AccountLock without locks: AccountUpdate and AccountConfirm check that the rows have not changed since.
select u.n::integer as n, a.account_id, a.scale, a.kind, a.state, a.balance, a.held, a.min_balance, a.max_balance,
    a.version, a.last_entry_at, a.next_expiry_at, a.xmin, a.ctid
from (
    select generate_subscripts(@codes::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@codes::text[]) as code, unnest(@assets::text[]) as asset
) u
cross join lateral (
    select l.account_id, l.scale, l.kind, l.state, l.balance, l.held, l.min_balance, l.max_balance, l.version,
        l.last_entry_at, l.next_expiry_at, l.xmin, l.ctid
    from ledger_accounts l
    where l.tenant_id = u.tenant_id and l.code = u.code and l.asset = u.asset
    offset 0
) a;

-- name: AccountConfirm :exec
-- Locks all accounts that an optimistic batch read. Fails unless the last writer of each is the transaction that the
-- batch expects.
select commit_expect(count(*), cardinality(@account_ids::bigint[]))
from (
    select unnest(@tenants::integer[]) as tenant_id, unnest(@account_ids::bigint[]) as account_id,
        unnest(@writers::xid[]) as writer
) u
cross join lateral (
    select 1
    from ledger_accounts l
    where l.tenant_id = u.tenant_id and l.account_id = u.account_id and l.xmin = u.writer
    offset 0
    for no key update
) a;

-- name: AccountExists :many
-- Positions of the accounts that exist, from 1.
select u.n::integer as n
from (
    select generate_subscripts(@codes::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@codes::text[]) as code, unnest(@assets::text[]) as asset
) u
cross join lateral (
    select from ledger_accounts l
    where l.tenant_id = u.tenant_id and l.code = u.code and l.asset = u.asset
    offset 0
) a;

-- name: AssetLookup :many
select u.n::integer as n, a.scale, a.created_at
from (
    select generate_subscripts(@codes::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@codes::text[]) as code
) u
cross join lateral (
    select l.scale, l.created_at from ledger_assets l where l.tenant_id = u.tenant_id and l.code = u.code offset 0
) a;

-- name: AccountDetailLookup :many
select u.n::integer as n, d.metadata, d.created_at
from (
    select generate_subscripts(@account_ids::bigint[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@account_ids::bigint[]) as account_id
) u
cross join lateral (
    select l.metadata, l.created_at from ledger_account_details l
    where l.tenant_id = u.tenant_id and l.account_id = u.account_id offset 0
) d;

-- name: TransferLookup :many
-- Transfers by biz_no.
select u.n::integer as n, t.transfer_id, t.type, t.recorded_at, t.effective_at, t.reverses_id, t.hold_id, t.forms,
    t.metadata, t.request_id
from (
    select generate_subscripts(@biz_nos::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@biz_nos::text[]) as biz_no
) u
cross join lateral (
    select l.transfer_id, l.type, l.recorded_at, l.effective_at, l.reverses_id, l.hold_id, l.forms, l.metadata,
        l.request_id
    from ledger_transfers l where l.tenant_id = u.tenant_id and l.biz_no = u.biz_no offset 0
) t;

-- name: TransferLookupByID :many
select u.n::integer as n, t.biz_no, t.type, t.recorded_at, t.effective_at, t.reverses_id, t.hold_id, t.forms,
    t.metadata, t.request_id
from (
    select generate_subscripts(@transfer_ids::bigint[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@transfer_ids::bigint[]) as transfer_id
) u
cross join lateral (
    select l.biz_no, l.type, l.recorded_at, l.effective_at, l.reverses_id, l.hold_id, l.forms, l.metadata, l.request_id
    from ledger_transfers l where l.tenant_id = u.tenant_id and l.transfer_id = u.transfer_id offset 0
) t;

-- name: TransferDiscover :many
-- Ids and accounts of transfers by biz_no: columns that never change, read without locks.
select u.n::integer as n, t.transfer_id, a.code, a.asset
from (
    select generate_subscripts(@biz_nos::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@biz_nos::text[]) as biz_no
) u
cross join lateral (
    select l.transfer_id from ledger_transfers l where l.tenant_id = u.tenant_id and l.biz_no = u.biz_no offset 0
) t
cross join lateral (
    select l.account_id from ledger_entries l where l.tenant_id = u.tenant_id and l.transfer_id = t.transfer_id offset 0
) e
cross join lateral (
    select l.code, l.asset from ledger_accounts l
    where l.tenant_id = u.tenant_id and l.account_id = e.account_id offset 0
) a;

-- name: EntryLookup :many
-- Entries of transfers with their accounts, in the order in which they were posted: a limited number of postings of
-- each, or all for 0. It does not use LIMIT, with which a plan made on an empty table might use the wrong index.
select u.n::integer as n, e.account_id, a.code, a.asset, a.scale, e.version, e.posting, e.amount, e.balance_before,
    e.balance_after, e.recorded_at, e.effective_at
from (
    select generate_subscripts(@transfer_ids::bigint[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@transfer_ids::bigint[]) as transfer_id, unnest(@most::integer[]) as most
) u
cross join lateral (
    select l.account_id, l.version, l.posting, l.amount, l.balance_before, l.balance_after, l.recorded_at,
        l.effective_at
    from ledger_entries l where l.tenant_id = u.tenant_id and l.transfer_id = u.transfer_id
        and (u.most = 0 or l.posting < u.most) offset 0
) e
cross join lateral (
    select l.code, l.asset, l.scale from ledger_accounts l
    where l.tenant_id = u.tenant_id and l.account_id = e.account_id offset 0
) a
order by u.n, e.posting, e.amount;

-- name: ReversalLookup :many
-- Reversals of these transfers.
select u.n::integer as n, t.transfer_id
from (
    select generate_subscripts(@transfer_ids::bigint[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@transfer_ids::bigint[]) as transfer_id
) u
cross join lateral (
    select l.transfer_id from ledger_transfers l where l.tenant_id = u.tenant_id
        and l.reverses_id = u.transfer_id offset 0
) t;

-- name: HoldLookup :many
-- Holds by biz_no, with their accounts.
select u.n::integer as n, h.hold_id, h.account_id, a.code, a.asset, a.scale, h.to_code, h.form, h.amount,
    h.captured, h.state, h.life_ms, h.expires_at, h.created_at, h.closed_at, h.metadata, h.request_id
from (
    select generate_subscripts(@biz_nos::text[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@biz_nos::text[]) as biz_no
) u
cross join lateral (
    select l.hold_id, l.account_id, l.to_code, l.form, l.amount, l.captured, l.state, l.life_ms, l.expires_at,
        l.created_at, l.closed_at, l.metadata, l.request_id
    from ledger_holds l where l.tenant_id = u.tenant_id and l.biz_no = u.biz_no offset 0
) h
cross join lateral (
    select l.code, l.asset, l.scale from ledger_accounts l
    where l.tenant_id = u.tenant_id and l.account_id = h.account_id offset 0
) a;

-- name: HoldLookupByID :many
select u.n::integer as n, h.biz_no, h.account_id, a.code, a.asset, a.scale, h.to_code, h.form, h.amount, h.captured,
    h.state, h.life_ms, h.expires_at, h.created_at, h.closed_at, h.metadata, h.request_id
from (
    select generate_subscripts(@hold_ids::bigint[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@hold_ids::bigint[]) as hold_id
) u
cross join lateral (
    select l.biz_no, l.account_id, l.to_code, l.form, l.amount, l.captured, l.state, l.life_ms, l.expires_at,
        l.created_at, l.closed_at, l.metadata, l.request_id
    from ledger_holds l where l.tenant_id = u.tenant_id and l.hold_id = u.hold_id offset 0
) h
cross join lateral (
    select l.code, l.asset, l.scale from ledger_accounts l
    where l.tenant_id = u.tenant_id and l.account_id = h.account_id offset 0
) a;

-- name: HoldDue :many
-- For each account: the expired open holds, up to a limit, and the expiry of the next one. The comparison of two
-- columns leaves the planner one index to choose.
select u.n::integer as n, h.hold_id, h.biz_no, h.amount, h.captured, h.expires_at
from (
    select generate_subscripts(@account_ids::bigint[], 1) as n, unnest(@tenants::integer[]) as tenant_id,
        unnest(@account_ids::bigint[]) as account_id
) u
cross join lateral (
    (select l.hold_id, l.biz_no, l.amount, l.captured, l.expires_at
    from ledger_holds l
    where l.tenant_id = u.tenant_id and l.account_id = u.account_id and l.state = 'held'
        and (l.account_id, l.expires_at) <= (u.account_id, @now::timestamptz)
    order by l.expires_at
    limit @most::bigint)
    union all
    (select l.hold_id, l.biz_no, l.amount, l.captured, l.expires_at
    from ledger_holds l
    where l.tenant_id = u.tenant_id and l.account_id = u.account_id and l.state = 'held'
        and (l.account_id, l.expires_at) > (u.account_id, @now::timestamptz)
    order by l.expires_at
    limit 1)
) h;

-- name: HoldDuePage :many
-- Open holds that expired a given time ago, with their accounts, oldest first, after a given one, for the background
-- task. Uses now(), because clock_timestamp() cannot be an index condition: all open holds would be read.
select a.tenant_id, a.code, a.asset, h.hold_id, h.expires_at
from (
    select l.tenant_id, l.account_id, l.hold_id, l.expires_at from ledger_holds l
    where l.state = 'held' and l.expires_at <= now() - make_interval(secs => @delay_s::double precision)
        and (l.expires_at, l.hold_id) > (@after::timestamptz, @after_id::bigint)
    order by l.expires_at, l.hold_id
    limit @batch::integer
) h
join ledger_accounts a on a.tenant_id = h.tenant_id and a.account_id = h.account_id
order by h.expires_at, h.hold_id;
