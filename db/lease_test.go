package db_test

import (
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestLockConstraintsRefuseByName(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn := connect(t, db.SuperDSN)
	const lock = `insert into lock_locks (tenant_id, name, state, principal, holder, fence, holds, lease_ms,
		acquired_at, expires_at, freed_at, request_id) values `
	const waiter = `insert into lock_waiters (tenant_id, name, ticket, principal, holder, instance, queued_at,
		alive_until, request_id) values `
	for constraint, sql := range map[string]string{
		"lock_locks_pkey": lock +
			"(1, 'a', 'held', 'p', 'h', 1, 1, 1000, now(), now() + '1 s', null, 'r'), (1, 'a', 'held', 'p', 'h', 2, " +
			"1, 1000, now(), now() + '1 s', null, 'r')",
		"lock_locks_name_check":   lock + "(1, '', 'held', 'p', 'h', 1, 1, 1000, now(), now() + '1 s', null, 'r')",
		"lock_locks_holder_check": lock + "(1, 'a', 'held', 'p', '', 1, 1, 1000, now(), now() + '1 s', null, 'r')",
		"lock_locks_state_check": lock +
			"(1, 'a', 'gone', 'p', 'h', 1, 0, 1000, now(), now() + '1 s', now(), 'r')",
		"lock_locks_fence_check":      lock + "(1, 'a', 'held', 'p', 'h', 0, 1, 1000, now(), now() + '1 s', null, 'r')",
		"lock_locks_holds_check":      lock + "(1, 'a', 'held', 'p', 'h', 1, 0, 1000, now(), now() + '1 s', null, 'r')",
		"lock_locks_lease_ms_check":   lock + "(1, 'a', 'held', 'p', 'h', 1, 1, 999, now(), now() + '1 s', null, 'r')",
		"lock_locks_expires_at_check": lock + "(1, 'a', 'held', 'p', 'h', 1, 1, 1000, now(), now(), null, 'r')",
		"lock_locks_freed_at_check":   lock + "(1, 'a', 'free', 'p', 'h', 1, 0, 1000, now(), now() + '1 s', null, 'r')",
		"lock_waiters_pkey": waiter +
			"(1, 'a', 1, 'p', 'h', 'i', now(), now(), 'r'), (1, 'a', 1, 'p', 'h', 'i', now(), now(), 'r')",
		"lock_waiters_ticket_check": waiter + "(1, 'a', 0, 'p', 'h', 'i', now(), now(), 'r')",
		"lock_waiters_holder_check": waiter + "(1, 'a', 1, 'p', '', 'i', now(), now(), 'r')",
	} {
		state := checkViolated
		if strings.HasSuffix(constraint, "_pkey") {
			state = uniqueTaken
		}
		refused(t, conn, sql, state, constraint)
	}
	service := connect(t, db.AllDSN)
	for _, sql := range []string{"select setval('lock_fence_seq', 1)", "alter sequence lock_fence_seq restart",
		"truncate lock_locks",
		"update lock_locks set name = name", "update lock_waiters set ticket = ticket",
		"select lock_check(1, 'a', 1)"} {
		refused(t, service, sql, noPrivilege, "")
	}
}
