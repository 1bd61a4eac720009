package db_test

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// illegalMove is the SQLSTATE of a move that a machine does not allow.
const illegalMove = "LD004"

// machines creates a machine "order", whose paid orders can move to refunding and back, and the paid orders a and b.
const machines = `
	insert into machine_definitions select 1, 'order', v, '{}', sha256('x'), 'p', 'r', now()
	from generate_series(1, 2) v;
	insert into machine_moves values (1, 'order', 1, '', 'pending', false), (1, 'order', 1, 'pending', 'paid', false),
		(1, 'order', 1, 'paid', 'shipped', false), (1, 'order', 1, 'paid', 'refunding', false),
		(1, 'order', 1, 'shipped', 'refunding', false), (1, 'order', 1, 'refunding', 'paid', true),
		(1, 'order', 1, 'refunding', 'shipped', true), (1, 'order', 2, '', 'paid', false);
	insert into machine_instances (tenant_id, machine, key, instance_id, version, state, came_from, revision, cause,
		created_at, changed_at) values (1, 'order', 'a', 7, 1, 'pending', '', 1, 'creation', now(), now()),
		(1, 'order', 'b', 8, 1, 'pending', '', 1, 'creation', now(), now());
	update machine_instances set state = 'paid', came_from = 'pending', revision = 2, cause = 'p';
	insert into machine_history (tenant_id, instance_id, revision, machine, key, version, from_state, to_state, actor,
		cause, principal, request_id, recorded_at)
		values (1, 7, 1, 'order', 'a', 1, '', 'pending', 'caller', 'creation', 'p', 'r', now());`

func TestIllegalMovesAreRefusedToASuperuser(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.SkipChecks() // the rows have no batch
	for _, dsn := range []string{db.SuperDSN, db.AllDSN} {
		conn := connect(t, dsn)
		if dsn == db.SuperDSN {
			if _, err := conn.Exec(t.Context(), machines); err != nil {
				t.Fatal(err)
			}
		}
		for _, set := range []string{
			"state = 'shipped'", // without a revision
			"state = 'shipped', came_from = 'paid', revision = 4",
			"state = 'shipped', came_from = 'paid', revision = 2",
			"state = 'shipped', came_from = 'pending', revision = 3",
			"state = 'pending', came_from = 'paid', revision = 3",   // no such move
			"state = 'refunded', came_from = 'paid', revision = 3",  // no such state
			"state = 'paid', came_from = 'paid', revision = 3",      // not a move
			"state = 'paid', came_from = 'refunding', revision = 2", // not the state before
			"revision = 3",
			// one of two
			"state = case key when 'a' then 'shipped' else 'pending' end, came_from = 'paid', revision = 3",
		} {
			refused(t, conn, "update machine_instances set "+set, illegalMove, "")
		}
		const insert = `insert into machine_instances (tenant_id, machine, key, instance_id, version, state, came_from,
			revision, cause, created_at, changed_at) values `
		for _, values := range []string{
			"(1, 'order', 'c', 9, 1, 'paid', '', 1, 'creation', now(), now())",
			"(1, 'order', 'c', 9, 1, 'paid', 'pending', 2, 'creation', now(), now())",
			"(1, 'order', 'c', 9, 3, 'pending', '', 1, 'creation', now(), now())",
			"(2, 'order', 'c', 9, 1, 'pending', '', 1, 'creation', now(), now())",
			"(1, 'order', 'c', 9, 1, 'pending', '', 1, 'creation', now(), now()), (1, 'order', 'd', 9, 1, 'paid', " +
				"'', 1, 'creation', now(), now())",
		} {
			refused(t, conn, insert+values, illegalMove, "")
		}
	}
	conn := connect(t, db.SuperDSN)
	for _, set := range []string{"tenant_id = 2", "machine = 'other'", "key = 'c'", "instance_id = 9", "version = 2",
		"state = 'shipped', came_from = 'paid', revision = 3, version = 1"} {
		refused(t, conn, "update machine_instances set "+set, appendOnly, "")
	}
	refused(t, conn, "update machine_instances set timer_at = now(), timer_to = 'paid'", illegalMove, "")
	refused(t, conn, "update machine_instances set cause = 'q'", illegalMove, "")
	refused(t, conn, "update machine_instances set owner = 'ann'", illegalMove, "")
	for _, table := range []string{"machine_definitions", "machine_moves", "machine_history"} {
		refused(t, conn, "update "+table+" set tenant_id = tenant_id", appendOnly, "")
		refused(t, conn, "delete from "+table, appendOnly, "")
		refused(t, conn, "truncate "+table, appendOnly, "")
	}
	refused(t, conn, "delete from machine_instances", appendOnly, "")
	refused(t, conn, "truncate machine_instances", appendOnly, "")
	if _, err := conn.Exec(t.Context(),
		"update machine_instances set state = 'refunding', came_from = 'paid', revision = 3, cause = 'r'"); err != nil {
		t.Errorf("a move: %v", err)
	}
	refused(t, conn, "update machine_instances set state = 'shipped', came_from = 'refunding', revision = 4",
		illegalMove, "")
	if _, err := conn.Exec(t.Context(),
		"update machine_instances set state = 'paid', came_from = 'refunding', revision = 4"); err != nil {
		t.Errorf("back: %v", err)
	}
}

func TestServiceMayNotRewriteMachines(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.New(t).AllDSN)
	for _, table := range []string{"machine_definitions", "machine_moves", "machine_history"} {
		refused(t, conn, "update "+table+" set tenant_id = tenant_id", noPrivilege, "")
		refused(t, conn, "delete from "+table, noPrivilege, "")
		refused(t, conn, "alter table "+table+" disable trigger all", noPrivilege, "")
	}
	for _, sql := range []string{
		"update machine_instances set version = version",
		"update machine_instances set key = key",
		"delete from machine_instances",
		"truncate machine_instances",
		"alter table machine_instances disable trigger machine_instances_moved",
	} {
		refused(t, conn, sql, noPrivilege, "")
	}
}
