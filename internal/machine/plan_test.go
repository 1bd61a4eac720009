package machine_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// plans runs every statement over one connection, so that each keeps the plan made on empty tables.
type plans struct {
	*desk
	pool   *pgxpool.Pool
	engine *flow.Engine
	reader *machine.Reader
}

func newPlans(t *testing.T) *plans {
	db := pgtest.New(t)
	db.SkipChecks() // the rows that load inserts have no batches
	p := &plans{desk: &desk{TB: t, db: db, super: pgtest.Pool(t, db.SuperDSN)}}
	var err error
	if p.pool, err = pg.Open(context.Background(), db.AllDSN, 1); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.pool.Close)
	pgtest.StopAutovacuum(p, p.super)
	p.engine = flow.NewEngine(p.pool, t.Name(), nil, nil)
	t.Cleanup(func() { _ = p.engine.Drain(context.Background()) })
	p.reader = machine.NewReader(p.pool)
	return p
}

func (p *plans) exec(sql string, args ...any) {
	p.Helper()
	if _, err := p.super.Exec(context.Background(), sql, args...); err != nil {
		p.Fatal(err)
	}
}

// do runs commands in one batch.
func (p *plans) do(commands ...commit.Command[*machine.Tx]) {
	p.Helper()
	submissions := make([]flow.Submission, len(commands))
	for i, c := range commands {
		submissions[i] = submission(flow.Machine(c))
	}
	for i, r := range p.engine.DoAll(context.Background(), submissions) {
		if r.Err != nil {
			p.Fatalf("command %d: %v", i, r.Err)
		}
	}
}

// blocks counts the table and index blocks that a call touches, from the statistics.
func (p *plans) blocks(call func()) int64 {
	p.Helper()
	return pgtest.TouchedBy(p, ".", p.super, p.pool, call)
}

// kinds are the operations on instances, each on keys of its own.
var kinds = map[string]func(machine, key string) commit.Command[*machine.Tx]{
	"create": func(m, key string) commit.Command[*machine.Tx] {
		return &machine.CreateCommand{Caller: caller,
			CreateParams: machine.CreateParams{Machine: m, Key: "new" + key, Owner: "ann"}}
	},
	"repeat": func(m, key string) commit.Command[*machine.Tx] {
		return &machine.CreateCommand{Caller: caller,
			CreateParams: machine.CreateParams{Machine: m, Key: "r" + key, Owner: "ann"}}
	},
	"move": func(m, key string) commit.Command[*machine.Tx] {
		return &machine.MoveCommand{Caller: caller,
			MoveParams: machine.MoveParams{Machine: m, Key: "m" + key, To: "paid", Cause: "p"}}
	},
	"fire": func(m, key string) commit.Command[*machine.Tx] {
		return &machine.FireCommand{Caller: caller, Key: machine.Key{Tenant: 1, Machine: m, Key: "f" + key}}
	},
	"define": func(m, key string) commit.Command[*machine.Tx] {
		definition := order()
		definition.States[1].Label = key
		return machine.NewDefine(caller, m+key, definition)
	},
}

// load inserts 4 times 20,000 instances of version 1 of 50 machines, of which 400 are due, with the moves that created
// them, and more versions of machines, without ANALYZE.
func (p *plans) load() {
	p.Helper()
	for _, sql := range []string{
		`insert into machine_definitions select t, 'm' || g, 1, d.definition, d.definition_hash, 'p', 'r', '2026-01-01Z'
			from machine_definitions d, generate_series(1, 20) t, generate_series(1, 200) g where d.machine = 'warm'`,
		`insert into machine_moves select t, 'm' || g, 1, d.from_state, d.to_state, d.back
			from machine_moves d, generate_series(1, 20) t, generate_series(1, 200) g where d.machine = 'warm'`,
		`insert into machine_instances (tenant_id, machine, key, instance_id, version, state, came_from, revision,
				cause, owner, timer_at, timer_to, created_at, changed_at)
			select 1, 'm' || i % 50 + 1, k || i, (1000000000::bigint << 14) + i * 4 + n, 1, 'pending', '', 1,
				'creation', 'ann', case when k = 'f' and i % 50 = 0 then '2026-01-02Z' else timestamptz '2126-01-01Z'
				end, 'cancelled', '2026-01-01Z', '2026-01-01Z'
			from generate_series(0, 19999) i, unnest(array['r', 'm', 'f', 'x']) with ordinality as u (k, n)`,
		`insert into machine_history (tenant_id, instance_id, revision, machine, key, version, from_state, to_state,
				actor, cause, principal, request_id, recorded_at)
			select tenant_id, instance_id, 1, machine, key, 1, '', 'pending', 'caller', 'creation', 'p', 'r', created_at
			from machine_instances where cause = 'creation' and instance_id >= 1000000000::bigint << 14`,
	} {
		p.exec("begin; set local session_replication_role = replica; " + sql + "; commit")
	}
}

func statements(t *testing.T, file string) (names []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^-- name: (\w+)`).FindAllStringSubmatch(string(text), -1) {
		names = append(names, m[1])
	}
	return names
}

// Plans made on empty tables, also those of the trigger, must be as good on full ones as plans with statistics.
func TestPlansOfEmptyTablesStayRightOnFullOnes(t *testing.T) {
	t.Parallel()
	p := newPlans(t)
	p.exec("analyze")
	p.do(machine.NewDefine(caller, "warm", order()))
	for round := range 12 {
		for _, kind := range []string{"r", "m", "f"} {
			p.do(&machine.CreateCommand{Caller: caller, CreateParams: machine.CreateParams{Machine: "warm",
				Key: fmt.Sprint(kind, "warm", round), Owner: "ann",
				Timer: map[string]time.Duration{"f": time.Millisecond}[kind]}})
		}
		for _, command := range kinds {
			p.do(command("warm", fmt.Sprint("warm", round)))
		}
	}
	p.load()
	var prepared []string
	rows, err := p.pool.Query(context.Background(), `select coalesce(substring(statement from '-- name: (\w+)'), '')
		from pg_prepared_statements`)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		prepared = append(prepared, name)
	}
	for _, name := range statements(t, "../../db/queries/machine/machine.sql") {
		if !slices.Contains(prepared, name) && name != "DefinitionRead" { // the cache has all definitions
			t.Errorf("%s was not run: the test does not cover it", name)
		}
	}
	const n = 50
	measure := func(round int) map[string]int64 {
		got := map[string]int64{}
		for kind, command := range kinds {
			commands := make([]commit.Command[*machine.Tx], n)
			for i := range commands {
				number := 5000 + round*1000 + i*50 // of machine m1
				commands[i] = command("m1", fmt.Sprint(number))
			}
			got[kind] = p.blocks(func() { p.do(commands...) }) / n
		}
		return got
	}
	first := measure(0)
	p.exec("analyze")
	if _, err := p.pool.Exec(context.Background(), "discard plans"); err != nil {
		t.Fatal(err)
	}
	for kind, n := range measure(3) {
		t.Logf("%-8s %5d blocks a command, %3d with statistics", kind, first[kind], n)
		if first[kind] > n+n/2+20 {
			t.Errorf("%s: %d blocks a command, %d with statistics", kind, first[kind], n)
		}
	}
}

// A page reads no more than it shows, with and without statistics, however many rows there are.
func TestPagesReadTheirOwnRows(t *testing.T) {
	t.Parallel()
	p := newPlans(t)
	p.do(machine.NewDefine(caller, "warm", order()))
	p.load()
	ctx := context.Background()
	key := machine.Key{Tenant: 1, Machine: "m1", Key: "m5000"}
	page := func(f machine.Filter) func() {
		return func() {
			if list, _, err := p.reader.Instances(ctx, 1, f, 10, ""); err != nil || len(list) != 10 {
				t.Errorf("%d rows, %v", len(list), err)
			}
		}
	}
	for _, statistics := range []string{"without", "with"} {
		if statistics == "with" {
			p.exec("analyze")
		}
		for what, read := range map[string]func(){
			"machine": func() {
				_, _ = p.reader.Machine(ctx, machine.Name{Tenant: 1, Machine: "m1"}, 0)
			},
			"machines":                       func() { _, _, _ = p.reader.Machines(ctx, 1, 10, "") },
			"instance":                       func() { _, _ = p.reader.Instance(ctx, key) },
			"instances":                      page(machine.Filter{Machine: "m1"}),
			"of owner":                       page(machine.Filter{Machine: "m1", Owner: "ann"}),
			"of both":                        page(machine.Filter{Machine: "m1", Owner: "ann", State: "cancelled"}),
			"of state":                       page(machine.Filter{Machine: "m1", State: "pending"}),
			"of state, while others are due": page(machine.Filter{Machine: "m2", State: "pending"}),
			"history":                        func() { _, _, _ = p.reader.History(ctx, key, 10, "") },
			"due": func() {
				if due, err := machine.DueInstances(ctx, p.pool, machine.Due{}, 10); err != nil || len(due) != 10 {
					t.Errorf("%d rows, %v", len(due), err)
				}
			},
		} {
			read() // the first read also reads the catalog
			most := int64(150)
			if what == "of state" {
				most += 400 // reads all due instances, which are never so many while a server runs
			}
			if n := pgtest.TouchedAtRest(t, p.super, most, func() int64 { return p.blocks(read) }); n > most {
				t.Errorf("%s statistics: %s touches %d blocks", statistics, what, n)
			} else {
				t.Logf("%s statistics: %s touches %d blocks", statistics, what, n)
			}
		}
	}
}
