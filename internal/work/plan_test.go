package work_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/work"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var caller = commit.Caller{Tenant: 1, Principal: "p", RequestID: "r"}

func submission(c commit.Command[*work.Tx]) flow.Submission {
	return flow.Submission{Tenant: 1, RequestID: "r", Command: flow.Work(c), Rows: 1, Bytes: 1}
}

func begin(key string) *work.BeginCommand {
	return &work.BeginCommand{Caller: caller,
		BeginParams: work.BeginParams{Scope: "s", Key: key, Lease: time.Hour, Life: time.Hour}}
}

func complete(t interface{ Fatal(...any) }, key string, fence int64, body string) *work.CompleteCommand {
	a, err := work.NewAnswer(200, nil, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return &work.CompleteCommand{Caller: caller, Held: work.Held{Scope: "s", Key: key, Fence: fence}, State: work.Done,
		Answer: a}
}

// plans runs commands over one connection, so that every statement keeps the plan made on an empty table.
type plans struct {
	*testing.T
	super, pool *pgxpool.Pool
	engine      *flow.Engine
	reader      *work.Reader
}

func (p *plans) do(works ...flow.Submission) (fences []int64) {
	p.Helper()
	for i, r := range p.engine.DoAll(context.Background(), works) {
		if r.Err != nil {
			p.Fatalf("command %d: %v", i, r.Err)
		}
		if b, ok := r.Outcome.Answer.(work.Begun); ok {
			fences = append(fences, b.Fence)
		}
	}
	return fences
}

func (p *plans) exec(sql string) {
	p.Helper()
	if _, err := p.super.Exec(context.Background(), sql); err != nil {
		p.Fatal(err)
	}
}

// blocks counts the blocks that a call touches.
func (p *plans) blocks(call func()) int64 {
	p.Helper()
	touched := func() int64 { return pgtest.Touched(p, "^work_records$", p.super, p.pool) }
	before := touched()
	call()
	return touched() - before
}

// kinds are the operations on existing running works k<from>, k<from+1>, …; the number of each is its fence.
func (p *plans) kinds(tag string, from, n int) map[string]func() {
	each := func(command func(i int) commit.Command[*work.Tx]) func() {
		return func() {
			var works []flow.Submission
			for i := range n {
				works = append(works, submission(command(from+i)))
			}
			p.do(works...)
		}
	}
	held := func(i int) work.Held {
		return work.Held{Scope: "s", Key: fmt.Sprint("k", i), Fence: int64(i)}
	}
	ctx := context.Background()
	return map[string]func(){
		"1 begin new":  each(func(i int) commit.Command[*work.Tx] { return begin(fmt.Sprint(tag, i)) }),
		"2 begin held": each(func(i int) commit.Command[*work.Tx] { return begin(fmt.Sprint("k", i)) }),
		"3 extend": each(func(i int) commit.Command[*work.Tx] {
			return &work.ExtendCommand{Caller: caller,
				Held: held(i)}
		}),
		"4 complete": each(func(i int) commit.Command[*work.Tx] {
			return complete(p, fmt.Sprint("k", i), int64(i),
				tag)
		}),
		"5 read": func() {
			for i := range n {
				if _, err := p.reader.Get(ctx,
					work.Key{Tenant: 1, Scope: "s", Name: fmt.Sprint("k", from+i)}); err != nil {
					p.Fatal(err)
				}
			}
		},
		"6 list": func() {
			for _, s := range []work.State{"", work.Running, work.Parked} {
				if _, _, err := p.reader.List(ctx, 1, work.Filter{Scope: "s", State: s}, n, ""); err != nil {
					p.Fatal(err)
				}
			}
		},
		"7 busy": func() {
			w := work.NewWaiters(p.pool, nil)
			var all []<-chan struct{}
			for i := range n {
				woken, leave := w.Watch(work.Key{Tenant: 1, Scope: "s", Name: fmt.Sprint("k", from+i)})
				defer leave()
				all = append(all, woken)
			}
			w.Poll()
			for _, woken := range all { // woken when completed
				<-woken
			}
		},
	}
}

// A plan made on an empty table must use the indexes of a full one that has no statistics.
func TestPlansMadeOnAnEmptyTableUseIndexesOnAFullOne(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := &plans{T: t, super: pgtest.Pool(t, db.SuperDSN)}
	var err error
	if p.pool, err = pg.Open(t.Context(), db.AllDSN, 1); err != nil {
		t.Fatal(err)
	}
	defer p.pool.Close()
	pgtest.StopAutovacuum(t, p.super)
	p.exec("analyze")
	p.engine, p.reader = flow.NewEngine(p.pool, t.Name(), nil, nil), work.NewReader(p.pool)
	defer p.engine.Drain(context.Background())
	load := func(from, to int) {
		p.exec(fmt.Sprintf(`select setval('work_fence_seq', 1000000); insert into work_records (tenant_id, scope, key,
			fingerprint, state, fence, attempt, lease_ms, lease_expires_at, park_lapsed, life_ms, principal, request_id,
			first_request_id, created_at, begun_at, expires_at)
			select 1, 's', 'k' || i, '', 'running', i, 1, 3600000, now() + interval '1 h', false, 3600000, 'p', 'r',
			'r', now(), now(), now() + interval '1 h'
			from generate_series(%d, %d) i`, from, to))
	}
	for round := range 8 {
		load(round+1, round+1)
		kinds := p.kinds(fmt.Sprint("warm", round, "-"), round+1, 1)
		for _, kind := range slices.Sorted(maps.Keys(kinds)) {
			kinds[kind]()
		}
		cleanAll(t, p.pool)
		p.exec("delete from work_records")
	}
	load(1, 100_000)
	p.exec(`insert into work_records (tenant_id, scope, key, state, fence, attempt, lease_ms, park_lapsed, life_ms,
			principal, request_id, first_request_id, created_at, begun_at, settled_at, settled_by, settled_request_id,
			expires_at)
		select 1, 's', 'old' || i, 'free', i, 1, 1, false, 1, 'p', 'r', 'r', now(), now(), now(), 'p', 'r',
		now() - interval '1 h' from generate_series(1, 2000) i`)
	const n = 50
	kinds := p.kinds("full-", 50_000, n)
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		if got := p.blocks(kinds[kind]) / n; got > 40 {
			t.Errorf("%s: %d blocks each", kind, got)
		} else {
			t.Logf("%s: %d blocks each", kind, got)
		}
	}
	cleaning := func() int64 { return p.blocks(func() { cleanAll(t, p.pool) }) }
	if got := cleaning(); got > 2000*15 {
		t.Errorf("cleaning touched %d blocks", got)
	}
	if got := pgtest.TouchedAtRest(t, p.super, 100, cleaning); got > 100 {
		t.Errorf("cleaning nothing touched %d blocks", got)
	}
}
