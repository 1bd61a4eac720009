-- Fences for your own database: a table with the greatest fence seen of each lock, and a function that refuses smaller
-- ones. Install it beside the tables that the lock guards, for example with
--
--     psql -d yours --single-transaction -f fence.sql
--
-- and call the function in every transaction of the work, before the transaction reads or writes anything else:
--
--     select fence_check('reports', 42);
--
-- Fails with SQLSTATE LF001 if a later fence has been used. Otherwise it blocks other transactions on this lock until
-- this one ends. Call it before reading too: otherwise an earlier holder can still write after the read of a later
-- one, which then overwrites that write.

create table fence_seen (
    name  text collate "C" not null,
    fence bigint not null,
    constraint fence_seen_pkey primary key (name)
);
comment on table fence_seen is
    'The greatest fence used of each lock. Rows of locks that are no longer used may be deleted.';
comment on column fence_seen.name is 'Name of the lock.';
comment on column fence_seen.fence is 'Greatest fence used.';

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
        raise exception 'the lock % was taken over: fence % is older than %', lock_name, lock_fence, seen
            using errcode = 'LF001';
    end if;
end
$$;
comment on function fence_check is
    'Fails with SQLSTATE LF001 if a later fence of the lock has been used. Otherwise blocks other transactions on this '
    'lock until this one ends.';
