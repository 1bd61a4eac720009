-- What a batch takes for granted without a look: names for new (ADR 11), and the time (ADR 12). Locks nothing.

-- +goose Up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
set local role ledgerd_owner;

-- +goose StatementBegin
create function commit_expect_new(there bigint) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
    as $$
begin
    if there > 0 then
        raise exception '% names were taken for new that are there', there using errcode = 'LD003';
    end if;
end
$$;
-- +goose StatementEnd
comment on function commit_expect_new is 'Fails the transaction when names are there that the batch took for new without looking (ADR 11).';

-- +goose StatementBegin
create function commit_expect_time(reckoned timestamptz) returns timestamptz
    language plpgsql
    set search_path = pg_catalog, pg_temp
    as $$
begin
    if reckoned not between clock_timestamp() - interval '1 s' and clock_timestamp() + interval '1 s' then
        raise exception 'the time was reckoned to be %, it is %', reckoned, clock_timestamp() using errcode = 'LD003';
    end if;
    return reckoned;
end
$$;
-- +goose StatementEnd
comment on function commit_expect_time is 'The time that a batch reckoned without asking (ADR 12). Fails the transaction when that is more than a second wrong.';
reset role;

-- +goose Down
drop function commit_expect_time;
drop function commit_expect_new;
