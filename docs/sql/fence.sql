-- Fences for your own database: a table of the greatest fence seen of every lock, and a function that
-- refuses older ones. Install it beside the tables that the lock guards, for example with
--
--     psql -d yours --single-transaction -f fence.sql
--
-- and call the function in every transaction that the work makes, before it reads or writes anything else:
--
--     select fence_check('reports', 42);
--
-- It fails with SQLSTATE LF001 when somebody with a later fence has been here. Otherwise it keeps whoever
-- comes for the same lock waiting until the transaction ends, so that nothing older commits after it.
-- Reads count too: a holder who has read is seen by those before him, whose writes he would miss.

create table fence_seen (
    name  text collate "C" not null,
    fence bigint not null,
    constraint fence_seen_pkey primary key (name)
);
comment on table fence_seen is 'The greatest fence of every lock that has been here. Rows of locks that are not used any more may go.';
comment on column fence_seen.name is 'Name of the lock.';
comment on column fence_seen.fence is 'Greatest fence that has been here.';

create function fence_check(lock_name text, lock_fence bigint) returns void
    language plpgsql
    set search_path from current
    as $$
declare
    seen bigint;
begin
    insert into fence_seen as f (name, fence) values (lock_name, lock_fence)
    on conflict (name) do update set fence = excluded.fence where f.fence <= excluded.fence;
    if not found then
        select f.fence into seen from fence_seen f where f.name = lock_name;
        raise exception 'the lock % was taken over: fence % is older than %', lock_name, lock_fence, seen using errcode = 'LF001';
    end if;
end
$$;
comment on function fence_check is 'Fails the transaction, with SQLSTATE LF001, when a later fence of the lock has been here; else keeps others who come for the lock waiting until the transaction ends.';
