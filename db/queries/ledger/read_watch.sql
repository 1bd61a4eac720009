-- Reads of watches: commits by epoch and transaction id, and their entries.

-- name: CommitPage :many
-- Commits after a position. A commit is final if no commit before it can still appear. All commits of earlier epochs
-- are final: their transaction ids cannot be compared with those of the present one. ORDER BY qualifies xid, because
-- the bare name would mean the text column of the result.
select b.epoch, b.xid::text as xid, b.batch_id, b.recorded_at,
    (b.epoch < (select commit_epoch()) or b.xid < pg_snapshot_xmin(pg_current_snapshot()))::boolean as final
from commit_batches b
where (b.epoch, b.xid, b.batch_id) > (@after_epoch::integer, cast(@after_xid::text as xid8), @after_batch::bigint)
order by b.epoch, b.xid, b.batch_id
limit @count::integer;

-- name: CommitLast :many
-- The last commits, newest first.
select b.epoch, b.xid::text as xid, b.batch_id, b.recorded_at,
    (b.epoch < (select commit_epoch()) or b.xid < pg_snapshot_xmin(pg_current_snapshot()))::boolean as final
from commit_batches b
order by b.epoch desc, b.xid desc, b.batch_id desc
limit @count::integer;

-- name: EntryCountOfBatch :many
-- How many entries of the tenant each batch has. id >> 14 of a row is its batch.
select u.n::integer as n, e.entries
from (select generate_subscripts(@batch_ids::bigint[], 1) as n, unnest(@batch_ids::bigint[]) as batch_id) u
cross join lateral (
    select count(*) as entries from ledger_entries l
    where l.tenant_id = @tenant_id::integer and l.transfer_id between u.batch_id << 14 and (u.batch_id << 14) + 16383
) e
where e.entries > 0;

-- name: EntryOfBatch :many
-- Entries of the tenant in batches, for accounts that match, in the order in which they were posted.
select u.n::integer as n, e.account_id, a.code, a.asset, a.scale, e.version, e.transfer_id, e.posting, e.amount,
    e.balance_before, e.balance_after, e.recorded_at, e.effective_at
from (select generate_subscripts(@batch_ids::bigint[], 1) as n, unnest(@batch_ids::bigint[]) as batch_id) u
cross join lateral (
    select l.account_id, l.version, l.transfer_id, l.posting, l.amount, l.balance_before, l.balance_after,
        l.recorded_at, l.effective_at
    from ledger_entries l
    where l.tenant_id = @tenant_id::integer and l.transfer_id between u.batch_id << 14 and (u.batch_id << 14) + 16383
    offset 0
) e
cross join lateral (
    select l.code, l.asset, l.scale from ledger_accounts l
    where l.tenant_id = @tenant_id::integer and l.account_id = e.account_id offset 0
) a
where a.code >= @low::text and a.code < @high::text and a.code ~ @match::text
order by u.n, e.transfer_id, e.posting, e.amount;

-- name: EntryOfTenants :many
-- Entries of tenants in batches, in the order in which each tenant's were posted.
select t.tenant_id::integer as tenant_id, u.n::integer as n, e.account_id, a.code, a.asset, a.scale, e.version,
    e.transfer_id, e.posting, e.amount, e.balance_before, e.balance_after, e.recorded_at, e.effective_at
from (select generate_subscripts(@batch_ids::bigint[], 1) as n, unnest(@batch_ids::bigint[]) as batch_id) u
cross join (select unnest(@tenants::integer[]) as tenant_id) t
cross join lateral (
    select l.account_id, l.version, l.transfer_id, l.posting, l.amount, l.balance_before, l.balance_after,
        l.recorded_at, l.effective_at
    from ledger_entries l
    where l.tenant_id = t.tenant_id and l.transfer_id between u.batch_id << 14 and (u.batch_id << 14) + 16383
    offset 0
) e
cross join lateral (
    select l.code, l.asset, l.scale from ledger_accounts l
    where l.tenant_id = t.tenant_id and l.account_id = e.account_id offset 0
) a
order by t.tenant_id, u.n, e.transfer_id, e.posting, e.amount;
