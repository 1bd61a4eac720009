package machine_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	machinedb "github.com/ledgerd/ledgerd/internal/machine/internal/db"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// BenchmarkMoveTrigger runs the statement that moves instances over one connection, with and without the trigger that
// checks the moves, by turns: CPU of Postgres in µs a move (medians), and the trigger's part of it.
func BenchmarkMoveTrigger(b *testing.B) {
	for _, size := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprint(size, " moves"), func(b *testing.B) {
			conn := benchInstances(b)
			took := map[string][]float64{}
			state, revision := 0, int64(1)
			for range b.N {
				for _, trigger := range []string{"disable", "enable"} {
					must(b, conn, "alter table machine_instances "+trigger+" trigger machine_instances_moved")
					var before float64
					for round := range 11 {
						if round == 1 { // the first one plans
							before = cpu(b, conn)
						}
						from := []string{"ping", "pong"}[state]
						state, revision = 1-state, revision+1
						arg := moveParams(size, from, []string{"ping", "pong"}[state], revision)
						if _, err := new(machinedb.Queries).InstanceMove(context.Background(), conn, arg); err != nil {
							b.Fatal(err)
						}
					}
					took[trigger] = append(took[trigger], (cpu(b, conn)-before)/float64(10*size))
				}
				must(b, conn, "vacuum machine_instances")
			}
			median := func(trigger string) float64 {
				slices.Sort(took[trigger])
				return took[trigger][len(took[trigger])/2]
			}
			b.ReportMetric(median("enable"), "µs/move")
			b.ReportMetric(median("enable")-median("disable"), "µs/check")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// cpu returns the time on a processor of the connection's process, in µs.
func cpu(b *testing.B, conn *pgx.Conn) (us float64) {
	b.Helper()
	if err := conn.QueryRow(context.Background(),
		"select split_part(pg_read_file('/proc/self/schedstat', 0, 100), ' ', 1)::float8 / 1000").Scan(&us); err != nil {
		b.Skip("needs Linux: ", err)
	}
	return us
}

func must(b *testing.B, conn *pgx.Conn, statements ...string) {
	b.Helper()
	for _, sql := range statements {
		if _, err := conn.PgConn().Exec(context.Background(), sql).ReadAll(); err != nil {
			b.Fatal(err)
		}
	}
}

// benchInstances makes 10,000 instances of 5 machines, and a connection with the settings of batches whose commits do
// not wait for the disk.
func benchInstances(b *testing.B) *pgx.Conn {
	db := pgtest.New(b)
	db.SkipChecks() // the rows have no history
	conn, err := pgx.Connect(context.Background(), db.SuperDSN)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close(context.Background()) })
	must(b, conn, `
		insert into machine_moves select 1, 'm' || g, 1, f, t, false from generate_series(0, 4) g,
			(values ('', 'ping'), ('ping', 'pong'), ('pong', 'ping')) v (f, t);
		insert into machine_instances (tenant_id, machine, key, instance_id, version, state, came_from, revision, cause, created_at, changed_at)
			select 1, 'm' || g % 5, 'order-' || g, g, 1, 'ping', '', 1, 'birth', now(), now() from generate_series(0, 9999) g;
		analyze machine_instances, machine_moves`,
		"vacuum machine_instances", `set synchronous_commit = off; set plan_cache_mode = force_generic_plan;
		set enable_hashjoin = off; set enable_mergejoin = off; set enable_seqscan = off; set jit = off`)
	return conn
}

// moveParams are the parameters that move the first instances.
func moveParams(size int, from, to string, revision int64) machinedb.InstanceMoveParams {
	arg, now := machinedb.InstanceMoveParams{}, time.Now().Add(time.Hour)
	for n := range size {
		arg.Tenants, arg.Machines = append(arg.Tenants, 1), append(arg.Machines, fmt.Sprint("m", n%5))
		arg.Keys, arg.States = append(arg.Keys, fmt.Sprint("order-", n)), append(arg.States, to)
		arg.CameFrom, arg.Revisions = append(arg.CameFrom, from), append(arg.Revisions, revision)
		arg.ChangedAt = append(arg.ChangedAt, now)
		arg.Causes, arg.TimerAt, arg.TimerTo = append(arg.Causes, "cause"), append(arg.TimerAt, time.Time{}), append(arg.TimerTo, "")
	}
	return arg
}
