package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/ledgerd/ledgerd/internal/bench/load"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/stock"
)

// stockBench is the environment of the benchmark of stock: one Postgres for the engine in this process and for a
// separate server. Each case has items of its own.
type stockBench struct {
	*database
	engine  *flow.Engine
	metrics *prometheus.Registry // of engine
	tallies map[string]*tally    // by case
	runs    int
}

// tally counts the sales of a case over all rounds.
type tally struct{ succeeded, unknown int64 }

const (
	stocked         = 1_000_000_000
	reservationLife = 15 * time.Minute
)

// stockPool is a server's number of connections for batches and direct commands.
const stockPool = enginePool + commit.MaxDirect

func (c *cluster) openStock(ctx context.Context) (*stockBench, error) {
	d, err := c.create(ctx, "stock", stockPool)
	if err != nil {
		return nil, err
	}
	if err := d.serve(ctx, true); err != nil {
		d.close()
		return nil, err
	}
	b := &stockBench{database: d, metrics: prometheus.NewRegistry(), tallies: map[string]*tally{}}
	b.engine = flow.NewEngine(d.pool, tenantName, commit.NewMetrics(b.metrics), nil)
	return b, nil
}

func (b *stockBench) close() {
	b.drain(b.engine)
	b.database.close()
}

// run measures a case once.
func (b *stockBench) run(ctx context.Context, c *Case) (Round, error) {
	b.runs++
	items := 1
	if !c.Hot {
		items = spreadItems
	}
	t := b.tallies[c.Name]
	if t == nil {
		t = &tally{}
		b.tallies[c.Name] = t
		if err := b.putItems(ctx, c, items); err != nil {
			return Round{}, err
		}
	}
	before, err := b.retries(ctx, c.Kind)
	if err != nil {
		return Round{}, err
	}
	spec := &load.Spec{Kind: load.Stock, Callers: c.Callers, URL: b.server.url, APIKey: b.apiKey,
		Run: fmt.Sprintf("s%03d", b.runs), Accounts: items, Prefix: c.Name, Strategy: c.Strategy, Confirm: c.Confirm,
		Warmup: b.options.Warmup, Measure: b.options.Measure, Patience: patience}
	var r *load.Result
	var marks [2]sample
	if c.Kind == Connect {
		r, marks, err = b.drive(ctx, spec, func() {})
	} else {
		r, marks, err = b.sell(ctx, spec)
	}
	if err != nil {
		return Round{}, err
	}
	after, err := b.retries(ctx, c.Kind)
	if err != nil {
		return Round{}, err
	}
	t.succeeded += r.Succeeded
	t.unknown += r.Unknown
	run := newRun(r, marks)
	if sold := float64(r.Succeeded); sold > 0 {
		run.Retries, run.Busy = (after-before)/sold, float64(r.Refused)/(sold+float64(r.Refused))
	}
	if r.Measured == 0 {
		run.Failures = append(run.Failures, "nothing was measured: "+r.FirstError)
	}
	return run, nil
}

// putItems creates the items of a case, with stock.
func (b *stockBench) putItems(ctx context.Context, c *Case, items int) error {
	var all []flow.Submission
	for n := range items {
		item := load.ItemName(c.Name, n)
		all = append(all, b.submission(&stock.PutItemCommand{Caller: b.caller(), Item: item, Segments: c.Segments}),
			b.submission(&stock.ChangeCommand{Caller: b.caller(), Item: item, ChangeNo: "stock", Kind: stock.Restock,
				Quantity: stocked}))
	}
	for _, r := range b.engine.DoAll(ctx, all) {
		if r.Err != nil {
			return r.Err
		}
	}
	return nil
}

func (b *stockBench) submission(c commit.Command[*stock.Tx]) flow.Submission {
	return flow.Submission{Tenant: b.tenant, RequestID: tenantName, Command: flow.Stock(c), Rows: 2, Bytes: 512}
}

// sell measures sales in this process.
func (b *stockBench) sell(ctx context.Context, spec *load.Spec) (r *load.Result, marks [2]sample, err error) {
	calls := make([]func() load.Outcome, spec.Callers)
	for caller := range calls {
		n := uint64(0)
		calls[caller] = func() load.Outcome {
			err := b.sale(ctx, spec, load.ItemName(spec.Prefix, rand.IntN(spec.Accounts)),
				load.ReservationNo(spec.Run, n, caller))
			n++
			switch {
			case err == nil:
				return load.Outcome{Succeeded: 1}
			case fault.Is(err, fault.RowsLocked):
				return load.Outcome{Refused: 1, Err: err}
			}
			return load.Outcome{Unknown: 1, Err: err}
		}
	}
	r, err = load.Measure(ctx, calls, spec.Warmup, spec.Measure, func(mark string) {
		if mark == load.MarkMeasure {
			marks[0] = b.sample(0)
		} else {
			marks[1] = b.sample(0)
		}
	})
	return r, marks, err
}

// sale sells one unit.
func (b *stockBench) sale(ctx context.Context, spec *load.Spec, item, no string) error {
	c := &stock.ReserveCommand{Caller: b.caller(), Item: item, ReservationNo: no, Quantity: 1, Strategy: spec.Strategy}
	if spec.Confirm {
		c.Life = reservationLife
	}
	w := b.submission(c)
	w.Direct = stock.Direct(spec.Strategy, 0)
	_, err := b.engine.Do(ctx, w)
	if err == nil && spec.Confirm {
		_, err = b.engine.Do(ctx, b.submission(&stock.ConfirmCommand{Caller: b.caller(), Item: item,
			ReservationNo: no}))
	}
	return err
}

// retries returns the number of attempts that did not commit, of this process's engine or of the server.
func (b *stockBench) retries(ctx context.Context, kind load.Kind) (n float64, err error) {
	families, err := b.metrics.Gather()
	if kind == Connect {
		var r *http.Request
		if r, err = http.NewRequestWithContext(ctx, http.MethodGet, "http://"+b.server.metrics+"/metrics", nil); err != nil {
			return 0, err
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0, err
		}
		defer answer.Body.Close()
		parser := expfmt.NewTextParser(model.UTF8Validation)
		named, err := parser.TextToMetricFamilies(answer.Body)
		if err != nil {
			return 0, err
		}
		families = families[:0]
		for _, f := range named {
			families = append(families, f)
		}
	}
	for _, f := range families {
		if f.GetName() != "ledgerd_commit_attempts_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() != "done" {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n, err
}

// verify counts in SQL: no item may have sold more units than it had or than it counts as sold, and each case must have
// sold the acknowledged units.
func (b *stockBench) verify(ctx context.Context, r *Report) error {
	rows, err := b.conn.Query(ctx, sql("stock"))
	if err != nil {
		return err
	}
	var name string
	var sold, oversold, missing int64
	met := 0
	_, err = pgx.ForEachRow(rows, []any{&name, &sold, &oversold, &missing}, func() error {
		met++
		t := b.tallies[name]
		if sold < t.succeeded || sold > t.succeeded+t.unknown {
			r.fail("%s: %d sales acknowledged, %d in the database", name, t.succeeded, sold)
		}
		if oversold != 0 {
			r.fail("%s: %d units oversold", name, oversold)
		}
		if missing != 0 {
			r.fail("%s: %d units are counted as sold without a reservation", name, missing)
		}
		return nil
	})
	if err == nil && met != len(b.tallies) {
		err = fmt.Errorf("%d of %d cases have items", met, len(b.tallies))
	}
	return err
}
