-- Epochs of the database's history.

-- name: EpochRead :one
-- The present epoch. An empty nonce means that no server has recorded it yet.
select e.epoch::integer as epoch, coalesce(l.nonce, '')::text as nonce,
    coalesce(l.begun_at, 'epoch')::timestamptz as begun_at
from (select commit_epoch() as epoch) e
left join commit_epochs l on l.epoch = e.epoch;

-- name: EpochRecord :exec
-- Records the present epoch, unless it is recorded. Waits for other sessions that are about to record it.
insert into commit_epochs default values on conflict (epoch) do nothing;

-- name: EpochHistory :one
-- Identifies the database, also on its standbys and across restarts.
select commit_history();
