-- Worker numbers of ids. An id has 10 bits for its worker number: all 1,024 rows are inserted here, and the service
-- only updates them. Locks nothing.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
set local role ledgerd_owner;

create table ids_workers (
    worker        smallint not null,
    fence         bigint not null default 0,
    holder        text collate "C" not null default '',
    leased_at     timestamptz not null default 'epoch',
    lease_expires_at  timestamptz not null default 'epoch',
    high_water_at timestamptz not null default 'epoch',
    constraint ids_workers_pkey primary key (worker),
    constraint ids_workers_worker_check check (worker between 0 and 1023),
    constraint ids_workers_fence_check check (fence >= 0),
    constraint ids_workers_holder_check check ((holder = '') = (fence = 0) and octet_length(holder) <= 256)
) with (fillfactor = 50);
comment on table ids_workers is
    'Worker numbers of ids, leased by processes. The key has no tenant, because a process makes ids for all '
    'tenants.';
comment on column ids_workers.worker is 'The number: 10 bits of every id.';
comment on column ids_workers.fence is
    'Fence. Grows by one with every lease, and every write of a holder names it, so that writes of an earlier '
    'holder fail. 0: never leased.';
comment on column ids_workers.holder is 'Process that leased it last: host/pid.';
comment on column ids_workers.leased_at is 'When it was leased last.';
comment on column ids_workers.lease_expires_at is
    'End of the lease, by the database''s clock. Another process can lease the number when lease_expires_at and '
    'high_water_at are past.';
comment on column ids_workers.high_water_at is
    'Upper limit of the times in ids of this number, raised before ids up to it are generated. The next holder starts '
    'at this time, even if its clock is behind.';

insert into ids_workers (worker) select generate_series(0, 1023);

grant select on ids_workers to ledgerd_app, ledgerd_audit;
grant update (fence, holder, leased_at, lease_expires_at, high_water_at) on ids_workers to ledgerd_app;

create view audit.id_workers as
select w.worker, w.holder, w.lease_expires_at > clock_timestamp() as held,
    w.leased_at, w.lease_expires_at, w.high_water_at, w.fence as leases
from ids_workers w
where w.fence > 0;
comment on view audit.id_workers is 'Worker numbers of ids that were ever leased, with their holders.';
comment on column audit.id_workers.worker is 'The number: 10 bits of every id.';
comment on column audit.id_workers.holder is 'Process that leased it last: host/pid.';
comment on column audit.id_workers.held is 'True if the lease has not ended.';
comment on column audit.id_workers.leased_at is 'When it was leased last.';
comment on column audit.id_workers.lease_expires_at is 'End of the lease.';
comment on column audit.id_workers.high_water_at is 'All ids of this number have earlier times.';
comment on column audit.id_workers.leases is 'How often it was leased, which is also its fence.';
grant select on audit.id_workers to ledgerd_audit;
reset role;

-- +goose Down
drop view audit.id_workers;
drop table ids_workers;
