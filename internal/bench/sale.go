package bench

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/client"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	salev1 "github.com/ledgerd/ledgerd/gen/ledgerd/sale/v1"
	"github.com/ledgerd/ledgerd/internal/bench/load"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/sale"
	"github.com/ledgerd/ledgerd/internal/stock"
)

// SaleOptions of RunSale. Zero values take the defaults.
type SaleOptions struct {
	Options
	// Units and Buyers of the sale, default 10,000 and 100,000. One buyer in 20 asks twice.
	Units, Buyers int
	// Redis is the program of the server to compare with; empty: it is not compared.
	Redis string
}

// Targets of the benchmark of sales.
const (
	saleOfRedis  = 0.9 // × the Redis design behind the same kind of server
	manyAnswered = 2 * time.Second
	perCall      = 500 // buyers in a GrabMany
	manyCallers  = 8
)

// SaleResult is a flash sale: medians of the rounds.
type SaleResult struct {
	Name, What string
	Callers    int
	// Answered is the time until all requests are answered, Durable the time until all winners' orders are durable.
	Answered, Durable time.Duration
	P50, P99          time.Duration // of a call
}

// RunSale measures a flash sale, and beside it the same sale decided by Redis. With ErrFailed it also returns a report.
func RunSale(ctx context.Context, o SaleOptions) (*Report, error) {
	o.Units, o.Buyers = cmp.Or(o.Units, 10_000), cmp.Or(o.Buyers, 100_000)
	c, r, err := start(ctx, &o.Options, SaleDocument)
	if err != nil {
		return nil, err
	}
	defer c.stop()
	b, err := c.openSale(ctx, &o)
	if err != nil {
		return nil, err
	}
	defer b.close()
	cases := b.cases()
	all := make([][]SaleResult, len(cases))
	for round := range r.Rounds {
		for i, x := range cases {
			if !fits(x.Name, o.Only) {
				continue
			}
			got, err := b.run(ctx, x)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", x.Name, err)
			}
			c.progress("%s, round %d of %d: answered in %s, durable in %s", x.Name, round+1, r.Rounds,
				seconds(got.Answered), seconds(got.Durable))
			all[i] = append(all[i], got)
		}
	}
	for _, rounds := range all {
		if len(rounds) > 0 {
			r.Sales = append(r.Sales, medianSale(rounds))
		}
	}
	r.judgeSale()
	return r.end()
}

// saleCase is one way to run the sale.
type saleCase struct {
	Name, What string
	Callers    int
	open       func(ctx context.Context, name string) (counter, error)
}

// counter is one sale under test, with a way to open callers.
type counter struct {
	caller func() (ask func(buyers []string) ([]told, error), leave func(), err error)
	most   int                                    // buyers in a call
	done   func(ctx context.Context) (int, error) // number of orders that are durable
	close  func()
}

// told is the answer to one buyer.
type told struct {
	won     bool
	orderNo string
}

// saleBench is a database with an engine in this process and a server beside it.
type saleBench struct {
	*database
	options *SaleOptions
	engine  *flow.Engine
	redis   *redisServer // nil: not compared
	runs    int
}

func (c *cluster) openSale(ctx context.Context, o *SaleOptions) (*saleBench, error) {
	d, err := c.create(ctx, "sale", enginePool)
	if err != nil {
		return nil, err
	}
	b := &saleBench{database: d, options: o}
	if err := d.serve(ctx, false); err != nil {
		b.database.close()
		return nil, err
	}
	b.engine = flow.NewEngine(d.pool, tenantName, commit.NewMetrics(prometheus.NewRegistry()), nil)
	asset := client.New(d.server.url, client.WithAPIKey(d.apiKey))
	defer asset.Close()
	if _, err := asset.Ledger.CreateAssets(ctx,
		&ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: load.Asset, Scale: load.Scale}}}); err != nil {
		b.close()
		return nil, err
	}
	if o.Redis != "" {
		if b.redis, err = b.startRedis(ctx); err != nil {
			b.close()
			return nil, fmt.Errorf("redis: %w", err)
		}
	}
	return b, nil
}

func (b *saleBench) close() {
	if b.redis != nil {
		b.redis.stop()
	}
	b.drain(b.engine)
	b.database.close()
}

func (b *saleBench) cases() (all []saleCase) {
	for _, n := range []int{256, 1024} {
		name := func(kind string) string { return fmt.Sprintf("%s-%d", kind, n) }
		all = append(all, saleCase{name("process"), "ledgerd, in process", n, b.inProcess},
			saleCase{name("connect"), "ledgerd, over Connect", n, b.overConnect(1)})
		if b.redis != nil {
			all = append(all, saleCase{name("redis"), "Redis, a connection a caller", n, b.redis.direct},
				saleCase{name("redis-connect"), "Redis, behind the same kind of server", n, b.redis.behindServer})
		}
	}
	return append(all, saleCase{"many", fmt.Sprintf("ledgerd, GrabMany of %d", perCall), manyCallers,
		b.overConnect(perCall)})
}

// run runs one sale.
func (b *saleBench) run(ctx context.Context, c saleCase) (r SaleResult, err error) {
	b.runs++
	at, err := c.open(ctx, fmt.Sprintf("s%03d", b.runs))
	if err != nil {
		return r, err
	}
	defer at.close()
	asks := b.asks()
	var next atomic.Int64
	var work sync.WaitGroup
	wins, errs := make([]map[string]win, c.Callers), make([]error, c.Callers)
	took := make([][]time.Duration, c.Callers)
	ready, begin := sync.WaitGroup{}, make(chan struct{})
	for n := range c.Callers {
		ask, leave, err := at.caller()
		if err != nil {
			return r, err
		}
		wins[n] = map[string]win{}
		ready.Add(1)
		work.Go(func() {
			defer leave()
			ready.Done()
			<-begin
			for errs[n] == nil {
				from := int(next.Add(int64(at.most))) - at.most
				if from >= len(asks) {
					return
				}
				buyers := asks[from:min(from+at.most, len(asks))]
				asked := time.Now()
				var all []told
				all, errs[n] = ask(buyers)
				took[n] = append(took[n], time.Since(asked))
				for i, x := range all {
					if x.won {
						errs[n] = cmp.Or(errs[n], count(wins[n], buyers[i], win{x.orderNo, 1}))
					}
				}
			}
		})
	}
	ready.Wait()
	started := time.Now()
	close(begin)
	work.Wait()
	r = SaleResult{Name: c.Name, What: c.What, Callers: c.Callers, Answered: time.Since(started)}
	for durable := -1; durable != b.options.Units; {
		if durable, err = at.done(ctx); err != nil {
			return r, err
		}
		if time.Since(started) > time.Minute {
			return r, fmt.Errorf("%d orders are durable, not %d", durable, b.options.Units)
		}
	}
	r.Durable = time.Since(started)
	all := slices.Concat(took...)
	slices.Sort(all)
	r.P50, r.P99 = all[len(all)/2], all[len(all)*99/100]
	return r, b.check(asks, wins, errs)
}

// win is the order in the answers to a buyer, and the number of these answers.
type win struct {
	orderNo string
	times   int
}

// count adds answers to a buyer. It fails if earlier answers had another order.
func count(wins map[string]win, buyer string, w win) error {
	old := wins[buyer]
	if old.times > 0 && old.orderNo != w.orderNo {
		return fmt.Errorf("%s got the orders %s and %s", buyer, old.orderNo, w.orderNo)
	}
	wins[buyer] = win{w.orderNo, old.times + w.times}
	return nil
}

// check checks the answers: each winner got the same order in every answer, and there are as many winners as units.
func (b *saleBench) check(asks []string, wins []map[string]win, errs []error) error {
	asked := map[string]int{}
	for _, buyer := range asks {
		asked[buyer]++
	}
	whole := map[string]win{}
	for n := range wins {
		if errs[n] != nil {
			return errs[n]
		}
		for buyer, w := range wins[n] {
			if err := count(whole, buyer, w); err != nil {
				return err
			}
		}
	}
	for buyer, w := range whole {
		if w.times != asked[buyer] {
			return fmt.Errorf("%s asked %d times and got order %s %d times", buyer, asked[buyer], w.orderNo, w.times)
		}
	}
	if len(whole) != b.options.Units {
		return fmt.Errorf("%d buyers won, of %d units", len(whole), b.options.Units)
	}
	return nil
}

// asks returns all buyers in a random order, one in 20 of them twice.
func (b *saleBench) asks() []string {
	all := make([]string, 0, b.options.Buyers+b.options.Buyers/20)
	for n := range b.options.Buyers {
		buyer := fmt.Sprintf("buyer-%06d", n)
		if all = append(all, buyer); n%20 == 0 {
			all = append(all, buyer)
		}
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

func (b *saleBench) submission(c flow.Command, rows int) flow.Submission {
	return flow.Submission{Tenant: b.tenant, RequestID: tenantName, Command: c, Rows: rows, Bytes: 512}
}

// put creates a sale with units.
func (b *saleBench) put(ctx context.Context, name string) error {
	for _, c := range []flow.Command{flow.Stock(&stock.PutItemCommand{Caller: b.caller(), Item: name}),
		flow.Stock(&stock.ChangeCommand{Caller: b.caller(), Item: name, ChangeNo: "stock", Kind: stock.Restock,
			Quantity: int64(b.options.Units)}),
		&flow.PutSale{Caller: b.caller(), Named: sale.Named{Key: sale.Key{Tenant: b.tenant, Sale: name},
			Sale: sale.Sale{Item: name, PerBuyer: 1, Order: &sale.Order{Asset: load.Asset, Amount: "1",
				Machine: machine.OrderMachine}}}}} {
		if _, err := b.engine.Do(ctx, b.submission(c, 2)); err != nil {
			return err
		}
	}
	return nil
}

// durable counts the orders of a sale in SQL.
func (b *saleBench) durable(name string) func(context.Context) (int, error) {
	return func(ctx context.Context) (n int, err error) {
		buyers := 0
		err = b.conn.QueryRow(ctx, sql("sale_orders"), b.tenant, name).Scan(&n, &buyers)
		if err == nil && n != buyers {
			err = fmt.Errorf("%d orders of %d buyers", n, buyers)
		}
		return n, err
	}
}

func (b *saleBench) inProcess(ctx context.Context, name string) (counter, error) {
	var made atomic.Int64
	number := func() (string, error) { return fmt.Sprintf("%s-%d", name, made.Add(1)), nil }
	return counter{most: 1, done: b.durable(name), close: func() {},
		caller: func() (func([]string) ([]told, error), func(), error) {
			return func(buyers []string) ([]told, error) {
				g := &flow.Grab{Caller: b.caller(), Sale: name, Buyer: buyers[0], Unit: 1, Renumber: number}
				g.OrderNo, _ = number()
				out, err := b.engine.Do(ctx, b.submission(g, 6))
				if err != nil {
					return nil, err
				}
				x := out.Answer.(flow.Grabbed)
				return []told{{x.OrderNo != "", x.OrderNo}}, nil
			}, func() {}, nil
		}}, b.put(ctx, name)
}

func (b *saleBench) overConnect(most int) func(context.Context, string) (counter, error) {
	return func(ctx context.Context, name string) (counter, error) {
		return counter{most: most, done: b.durable(name), close: func() {},
			caller: connectCaller(b.server.url, b.apiKey, name, most)}, b.put(ctx, name)
	}
}

// connectCaller asks over Connect.
func connectCaller(url, apiKey, name string, most int) func() (func([]string) ([]told, error), func(), error) {
	return func() (func([]string) ([]told, error), func(), error) {
		g, err := load.NewGrabber(url, apiKey, name, time.Minute)
		if err != nil {
			return nil, nil, err
		}
		one := func(buyers []string) ([]told, error) {
			r, err := g.Grab(buyers[0])
			return []told{toldOf(r)}, err
		}
		if most == 1 {
			return one, g.Close, nil
		}
		return func(buyers []string) (all []told, err error) {
			results, err := g.GrabMany(buyers)
			for _, r := range results {
				if r.GetError() != nil {
					return nil, fmt.Errorf("grab: %s", r.GetError().GetMessage())
				}
				all = append(all, toldOf(r.GetGrab()))
			}
			return all, err
		}, g.Close, nil
	}
}

func toldOf(r *salev1.GrabResponse) told { return told{r.GetOrderNo() != "", r.GetOrderNo()} }

func medianSale(rounds []SaleResult) SaleResult {
	m := rounds[0]
	for _, field := range []func(*SaleResult) *time.Duration{
		func(x *SaleResult) *time.Duration { return &x.Answered },
		func(x *SaleResult) *time.Duration { return &x.Durable },
		func(x *SaleResult) *time.Duration { return &x.P50 },
		func(x *SaleResult) *time.Duration { return &x.P99 },
	} {
		var all []time.Duration
		for i := range rounds {
			all = append(all, *field(&rounds[i]))
		}
		slices.Sort(all)
		*field(&m) = (all[(len(all)-1)/2] + all[len(all)/2]) / 2
	}
	return m
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }

// judgeSale compares the results with the targets.
func (r *Report) judgeSale() {
	find := func(name string) *SaleResult {
		i := slices.IndexFunc(r.Sales, func(x SaleResult) bool { return x.Name == name })
		if i < 0 {
			return nil
		}
		return &r.Sales[i]
	}
	for _, n := range []int{256, 1024} {
		what, want := fmt.Sprintf("%d callers over Connect, answered and durable", n),
			fmt.Sprintf(">= %.1f × Redis behind the same kind of server", saleOfRedis)
		ours, theirs := find(fmt.Sprintf("connect-%d", n)), find(fmt.Sprintf("redis-connect-%d", n))
		if ours == nil || theirs == nil {
			r.unmeasured(what, want)
			continue
		}
		ratio := theirs.Answered.Seconds() / ours.Durable.Seconds()
		r.target(what, want, fmt.Sprintf("%.2f ×", ratio), ratio >= saleOfRedis)
	}
	const want = "<= 2 s"
	if x := find("many"); x != nil {
		r.target("GrabMany, answered", want, seconds(x.Answered), x.Answered <= manyAnswered)
	} else {
		r.unmeasured("GrabMany, answered", want)
	}
}

func (r *Report) saleSections() []section {
	rows := [][]string{{"case", "what", "callers", "all answered", "all orders durable", "p50, p99 of a call"}}
	for _, x := range r.Sales {
		rows = append(rows, []string{x.Name, x.What, thousands(float64(x.Callers)), seconds(x.Answered),
			seconds(x.Durable), milliseconds(x.P50) + ", " + milliseconds(x.P99)})
	}
	return []section{{text: fmt.Sprintf("Load, service and database share the machine. All buyers ask at once; "+
		"one buyer in 20 asks twice. Medians of %d rounds. An order of ledgerd is durable before its winner gets the "+
		"answer. An order of the Redis design is then in its append-only file (everysec), and in Postgres when one "+
		"of two workers has inserted it, in batches.", r.Rounds)},
		{rows: rows}}
}
