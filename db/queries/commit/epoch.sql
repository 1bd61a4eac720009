-- The epochs of the database's history.

-- name: EpochRead :one
-- The epoch now. No nonce: no server has noticed it yet.
select e.epoch::integer as epoch, coalesce(l.nonce, '')::text as nonce, coalesce(l.began_at, 'epoch')::timestamptz as began_at
from (select commit_epoch() as epoch) e
left join commit_epochs l on l.epoch = e.epoch;

-- name: EpochBegin :exec
-- Notices the epoch. Another server may have done so.
insert into commit_epochs (epoch) select commit_epoch() on conflict (epoch) do nothing;
