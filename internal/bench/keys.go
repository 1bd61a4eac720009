package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/bench/load"
	"github.com/ledgerd/ledgerd/internal/flow"
)

// KeyOptions of RunKeys. Zero values take the defaults.
type KeyOptions struct {
	Options
	// Callers is the number of concurrent callers.
	Callers int
}

// DefaultCallers of the benchmarks of keys and messages.
const DefaultCallers = 256

// keyCase is one workload: an operation in a closed loop by many callers.
type keyCase struct {
	name, what string
	where      load.Kind
	operation  operation
}

// Kinds of load of the benchmark of keys.
const (
	InProcess load.Kind = "in process" // the engine in the callers' process
	Connect   load.Kind = "Connect"    // through a separate server over HTTP
)

// yardstick is the case that the others are compared with.
const yardstick = "claim-rpc"

// operation is one operation of a caller; the key is unique.
type operation func(ctx context.Context, caller int, key string) error

// keyBench is the environment of RunKeys: one Postgres for the engine in this process and for a separate server.
type keyBench struct {
	*database
	callers          int
	engine           *flow.Engine
	client           *client.Client
	tokens, rpcStock *supply
}

// enginePool is a server's number of connections for batches.
const enginePool = 8

// keyTables is Result.Tables in the benchmark of keys.
const keyTables = "keys"

// RunKeys measures keys, tokens, guarded work and locks.
func RunKeys(ctx context.Context, o KeyOptions) (*Report, error) {
	c, r, err := start(ctx, &o.Options, KeysDocument)
	if err != nil {
		return nil, err
	}
	defer c.stop()
	r.Callers = cmp.Or(o.Callers, DefaultCallers)
	d, err := c.create(ctx, "keys", enginePool)
	if err != nil {
		return nil, err
	}
	defer d.close()
	if err := d.serve(ctx, false); err != nil {
		return nil, err
	}
	b := &keyBench{database: d, callers: r.Callers, engine: flow.NewEngine(d.pool, tenantName, nil, nil),
		client: client.New(d.server.url, client.WithAPIKey(d.apiKey))}
	defer b.drain(b.engine)
	defer b.client.Close()
	b.tokens, b.rpcStock = newSupply(b.issue), newSupply(b.fetch)
	operations := map[string]operation{}
	var cases []Case
	for _, x := range b.cases() {
		operations[x.name] = x.operation
		cases = append(cases, Case{Name: x.name, What: x.what, Kind: x.where, Callers: r.Callers})
	}
	done := map[string]int64{}
	err = r.rounds(c, keyTables, selected(cases, o.Only), func(x *Case) (Round, error) {
		run, err := b.measure(ctx, operations[x.Name], fmt.Sprintf("%s-%d", x.Name, done[x.Name]))
		done[x.Name] += run.Succeeded
		return run, err
	})
	if err != nil {
		return nil, err
	}
	if standard := r.find(keyTables, yardstick); standard != nil {
		for i := range r.Results {
			r.Results[i].Ratio = r.Results[i].PerSecond / standard.PerSecond
		}
	}
	if err := b.verify(ctx, done, r); err != nil {
		return nil, err
	}
	return r.end()
}

// measure runs an operation in closed loops. run is unique among measurements.
func (b *keyBench) measure(ctx context.Context, op operation, run string) (Round, error) {
	calls := make([]func() load.Outcome, b.callers)
	for caller := range calls {
		prefix, n := run+":"+strconv.Itoa(caller)+":", 0
		calls[caller] = func() load.Outcome {
			n++
			if err := op(ctx, caller, prefix+strconv.Itoa(n)); err != nil {
				return load.Outcome{Refused: 1, Err: err}
			}
			return load.Outcome{Succeeded: 1}
		}
	}
	r, err := load.Measure(ctx, calls, b.options.Warmup, b.options.Measure, func(string) {})
	if err != nil {
		return Round{}, err
	}
	if r.Refused > 0 {
		return Round{}, errors.New(r.FirstError)
	}
	return newRun(r, [2]sample{}), nil
}

func (r *Report) keySections() []section {
	rows := [][]string{{"case", "what", "where", "operations/s [min..max]", "p50", "p99", "× " + yardstick}}
	for i := range r.Results {
		x := &r.Results[i]
		rows = append(rows, []string{x.Name, x.What, string(x.Kind), x.rate(), milliseconds(x.P50), milliseconds(x.P99),
			x.ratio()})
	}
	return []section{{text: fmt.Sprintf("%d callers; %s", r.Callers, r.length())}, {rows: rows}}
}
