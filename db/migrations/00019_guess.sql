-- Names that a batch takes for new without looking (ADR 11). Locks nothing.

-- +goose Up
set local role ledgerd_owner;

-- +goose StatementBegin
create function commit_expect_new(there bigint) returns void
    language plpgsql
    set search_path = pg_catalog
    as $$
begin
    if there > 0 then
        raise exception '% names were taken for new that are there', there using errcode = 'LD003';
    end if;
end
$$;
-- +goose StatementEnd
comment on function commit_expect_new is 'Fails the transaction when names are there that the batch took for new without looking (ADR 11).';
reset role;

-- +goose Down
drop function commit_expect_new;
