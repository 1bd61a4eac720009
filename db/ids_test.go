package db_test

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestServiceMayOnlyLeaseWorkerNumbers(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn := connect(t, db.AllDSN)
	for _, sql := range []string{
		"insert into ids_workers (worker) values (0)",
		"delete from ids_workers",
		"truncate ids_workers",
		"update ids_workers set worker = worker",
		"select * from audit.id_workers",
	} {
		refused(t, conn, sql, noPrivilege, "")
	}
	super := connect(t, db.SuperDSN)
	for constraint, sql := range map[string]string{
		"ids_workers_pkey":         "insert into ids_workers (worker) values (1023)",
		"ids_workers_worker_check": "insert into ids_workers (worker) values (1024)",
		"ids_workers_fence_check":  "update ids_workers set fence = -1, holder = 'x' where worker = 0",
		"ids_workers_holder_check": "update ids_workers set fence = 1 where worker = 0",
	} {
		state := checkViolated
		if constraint == "ids_workers_pkey" {
			state = uniqueTaken
		}
		refused(t, super, sql, state, constraint)
	}
	if n := lines(t, super, "select count(*)::text from ids_workers")[0]; n != "1024" {
		t.Errorf("%s worker numbers", n)
	}
	do(t, super, "update ids_workers set fence = 2, holder = 'host/1', lease_expires_at = now() + '1 minute' "+
		"where worker = 5")
	want := "5 host/1 t 2"
	if got := lines(t, asAuditor(t, db),
		"select format('%s %s %s %s', worker, holder, held, leases) from audit.id_workers"); len(got) != 1 ||
		got[0] != want {
		t.Errorf("audit.id_workers shows %q, not %q", got, want)
	}
}
