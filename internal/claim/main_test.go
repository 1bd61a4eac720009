package claim_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/internal/claim"
	"github.com/ledgerd/ledgerd/internal/clean"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// cleanAll deletes expired claims and returns their number.
func cleanAll(t testing.TB, pool *pgxpool.Pool) int64 {
	t.Helper()
	c, keys := clean.Cleaner{Pool: pool, Metrics: clean.NewMetrics(nil)}, claim.Keys()
	n, err := c.Clean(context.Background(), &keys)
	if err != nil {
		t.Error(err)
	}
	return n
}

// desk is two engines on one database, like two servers.
type desk struct {
	testing.TB
	super   *pgxpool.Pool
	app     *pgxpool.Pool
	engines [2]*flow.Engine
	counts  [2]*prometheus.Registry
}

func newDesk(t testing.TB) *desk {
	t.Helper()
	db := pgtest.New(t)
	d := &desk{TB: t, super: pgtest.Pool(t, db.SuperDSN), app: pgtest.Pool(t, db.AllDSN)}
	for i := range d.engines {
		d.counts[i] = prometheus.NewRegistry()
		d.engines[i] = newEngine(t, db.AllDSN, d.counts[i])
	}
	return d
}

func newEngine(t testing.TB, dsn string, reg prometheus.Registerer) *flow.Engine {
	t.Helper()
	pool, err := pg.Open(context.Background(), dsn, 6)
	if err != nil {
		t.Fatal(err)
	}
	e := flow.NewEngine(pool, t.Name(), commit.NewMetrics(reg), nil)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := e.Drain(ctx); err != nil {
			t.Error(err)
		}
		pool.Close()
	})
	return e
}

// count is the sum of a counter over both engines.
func (d *desk) count(counter string) (n float64) {
	d.Helper()
	for _, reg := range d.counts {
		n += pgtest.Counter(d, reg, counter)
	}
	return n
}

var caller = commit.Caller{Tenant: 1, Principal: "test", RequestID: "r"}

// by is the caller with another request id.
func by(requestID string) commit.Caller {
	c := caller
	c.RequestID = requestID
	return c
}

func submission(c flow.Command) flow.Submission {
	return flow.Submission{Tenant: 1, RequestID: "r", Command: c, Rows: 1, Bytes: 400}
}

// use is a use of a key in scope "s".
func use(c commit.Caller, key string, life time.Duration, change ...func(*claim.Params)) *claim.Command {
	p := claim.Params{Scope: "s", Key: key, Life: life}
	for _, f := range change {
		f(&p)
	}
	return &claim.Command{Caller: c, Params: p}
}

func owner(name string) func(*claim.Params)  { return func(p *claim.Params) { p.Owner = name } }
func result(name string) func(*claim.Params) { return func(p *claim.Params) { p.Result = name } }
func firstOnly(p *claim.Params)              { p.FirstOnly = true }
func parts(list ...string) func(*claim.Params) {
	return func(p *claim.Params) { p.Key, p.Parts = claim.Compose(list), list }
}

// all runs commands in one batch, if no other commands are running.
func (d *desk) all(commands ...flow.Command) []commit.Result {
	d.Helper()
	works := make([]flow.Submission, len(commands))
	for i, c := range commands {
		works[i] = submission(c)
	}
	return d.engines[0].DoAll(context.Background(), works)
}

// use runs one use and returns its outcome: "1", "2 existed", or a reason.
func (d *desk) use(c *claim.Command) string {
	d.Helper()
	return ended(d.all(flow.Claim(c))[0])
}

func ended(r commit.Result) string {
	if f := fault.Of(r.Err); f != nil {
		return f.Reason.Name
	}
	if r.Err != nil {
		return r.Err.Error()
	}
	switch a := r.Outcome.Answer.(type) {
	case claim.Use:
		if a.Existed {
			return fmt.Sprint(a.Count, " existed")
		}
		return fmt.Sprint(a.Count)
	case bool:
		return fmt.Sprint(a)
	}
	return fmt.Sprintf("%+v", r.Outcome.Answer)
}

func (d *desk) want(got string, want string) {
	d.Helper()
	if got != want {
		d.Errorf("got %s, want %s", got, want)
	}
}

// age advances time by moving all stored times into the past.
func (d *desk) age(by time.Duration) {
	d.Helper()
	us := by.Microseconds()
	for _, sql := range []string{
		"alter table commit_batches disable trigger user",
		fmt.Sprintf("update commit_batches set recorded_at = recorded_at - %d * interval '1 us'", us),
		"alter table commit_batches enable trigger user",
		fmt.Sprintf("update claim_keys set claimed_at = claimed_at - %d * interval '1 us', "+
			"expires_at = expires_at - %[1]d * interval '1 us'", us),
	} {
		if _, err := d.super.Exec(context.Background(), sql); err != nil {
			d.Fatal(err)
		}
	}
}

func (d *desk) text(query string, args ...any) (s string) {
	d.Helper()
	if err := d.super.QueryRow(context.Background(), query, args...).Scan(&s); err != nil {
		d.Fatal(err)
	}
	return s
}
