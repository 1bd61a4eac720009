package bench

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ledgerd/ledgerd/client"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	paymentv1 "github.com/ledgerd/ledgerd/gen/ledgerd/payment/v1"
	stockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1"
	"github.com/ledgerd/ledgerd/internal/bench/load"
)

// CheckoutOptions of RunCheckout. Zero values take the defaults.
type CheckoutOptions struct {
	Options
	// Items is the number of items in cases that spread their orders, default 1,000.
	Items int
}

const (
	checkoutTables  = "checkout"
	checkoutCallers = 256
	checkoutTimes   = 2.0 // × the better baseline, on one hot item
	// clearing is the account from which payments are posted.
	clearing = "gateway"
)

// RunCheckout measures orders from creation to payment, and PL/pgSQL that writes the same rows. With ErrFailed it also
// returns a report.
func RunCheckout(ctx context.Context, o CheckoutOptions) (*Report, error) {
	if o.Items == 0 {
		o.Items = spreadItems
	}
	c, r, err := start(ctx, &o.Options, CheckoutDocument)
	if err != nil {
		return nil, err
	}
	defer c.stop()
	b, err := c.openCheckout(ctx, o.Items)
	if err != nil {
		return nil, err
	}
	defer b.close()
	err = r.rounds(c, checkoutTables, selected(checkoutCases(), o.Only), func(x *Case) (Round, error) {
		return b.run(ctx, x)
	})
	if err != nil {
		return nil, err
	}
	r.judgeCheckout()
	return r.end()
}

// checkoutCases are named by implementation, callers and items.
func checkoutCases() (all []Case) {
	for _, hot := range []bool{true, false} {
		items := "spread"
		if hot {
			items = "hot"
		}
		add := func(what, description string, kind load.Kind, callers int) {
			all = append(all, Case{Name: fmt.Sprintf("%s-%d-%s", what, callers, items), What: description, Kind: kind,
				Callers: callers, Hot: hot})
		}
		for _, n := range []int{16, 32} {
			add("plpgsql", "PL/pgSQL, a call a step", load.CheckoutBaseline, n)
		}
		add("connect", "ledgerd, over Connect", load.Checkout, checkoutCallers)
	}
	return all
}

// checkoutBench is a database with a server that has a gateway, and a schema with the tables of the baseline.
type checkoutBench struct {
	*database
	gateway, secret string
	items, runs     int
}

func (c *cluster) openCheckout(ctx context.Context, items int) (*checkoutBench, error) {
	d, err := c.create(ctx, "checkout", enginePool)
	if err != nil {
		return nil, err
	}
	b := &checkoutBench{database: d, items: items,
		secret: "whsec_" + base64.StdEncoding.EncodeToString([]byte("a secret of this benchmark alone"))}
	if err = b.prepare(ctx); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

// prepare starts the server, and creates the baseline.
func (b *checkoutBench) prepare(ctx context.Context) (err error) {
	if b.gateway, err = freeAddress(); err != nil {
		return err
	}
	file := filepath.Join(b.dir, "gateways.yaml")
	settings := fmt.Sprintf("gateways: [{kind: standard, tenant: %s, url: 'http://%s', notify_url: 'http://%s', "+
		"secrets: ['%s']}]\n", tenantName, b.gateway, b.gateway, b.secret)
	if err := os.WriteFile(file, []byte(settings), 0o644); err != nil {
		return err
	}
	if b.server, err = startService(ctx, b.options.Program, b.url, false, "--pay="+file); err != nil {
		return err
	}
	if err := b.fill(ctx); err != nil {
		return err
	}
	_, err = b.conn.Exec(ctx, sql("checkout_baseline"))
	return err
}

// fill creates the items, the accounts of their sellers, and the gateway.
func (b *checkoutBench) fill(ctx context.Context) error {
	api := client.New(b.server.url, client.WithAPIKey(b.apiKey))
	defer api.Close()
	if _, err := api.Ledger.CreateAssets(ctx,
		&ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: load.Asset, Scale: load.Scale}}}); err != nil {
		return err
	}
	accounts := []*ledgerv1.NewAccount{{Code: clearing, Asset: load.Asset, Unbounded: true}}
	for n := range b.items {
		item := load.ItemName(checkoutTables, n)
		accounts = append(accounts, &ledgerv1.NewAccount{Code: load.Seller(item), Asset: load.Asset})
		if _, err := api.Stock.PutItem(ctx, &stockv1.PutItemRequest{Item: item}); err != nil {
			return err
		}
		if _, err := api.Stock.Restock(ctx,
			&stockv1.RestockRequest{Item: item, ChangeNo: "stock", Quantity: stocked}); err != nil {
			return err
		}
	}
	for from := 0; from < len(accounts); from += 1000 {
		if _, err := api.Ledger.CreateAccounts(ctx, &ledgerv1.CreateAccountsRequest{
			Accounts: accounts[from:min(from+1000, len(accounts))]}); err != nil {
			return err
		}
	}
	_, err := api.Payments.PutGateway(ctx, &paymentv1.PutGatewayRequest{
		Gateway: &paymentv1.Gateway{Gateway: load.Gateway, Clearing: clearing}})
	return err
}

// run measures a case once, and counts its orders in SQL.
func (b *checkoutBench) run(ctx context.Context, c *Case) (Round, error) {
	b.runs++
	spec := &load.Spec{Kind: c.Kind, Callers: c.Callers, URL: b.server.url, APIKey: b.apiKey, DSN: b.superDSN(),
		Tenant: b.tenant, Run: fmt.Sprintf("c%03d", b.runs), Prefix: checkoutTables, Accounts: b.items,
		Warmup: b.options.Warmup, Measure: b.options.Measure, Patience: patience}
	schema := baseline
	if c.Kind == load.Checkout {
		spec.Gateway, spec.Secret = b.gateway, b.secret
		schema = ours
	}
	if c.Hot {
		spec.Accounts = 1
	}
	r, marks, err := b.drive(ctx, spec, func() {})
	if err != nil {
		return Round{}, err
	}
	run := newRun(r, marks)
	if r.Measured == 0 || r.Unknown > 0 {
		run.Failures = append(run.Failures,
			fmt.Sprintf("%d orders have an unknown outcome: %s", r.Unknown, r.FirstError))
	}
	failures, err := b.verify(ctx, schema, spec.Run, r)
	run.Failures = append(run.Failures, failures...)
	return run, err
}

// verify compares the rows of a run with the acknowledged orders.
func (b *checkoutBench) verify(ctx context.Context, schema ledger, name string, r *load.Result) (failures []string,
	err error) {
	if _, err := b.conn.Exec(ctx, "set search_path to "+string(schema)); err != nil {
		return nil, err
	}
	rows, err := b.conn.Query(ctx, sql("checkout_counts"), b.tenant, name)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var what string
		var n int64
		if err := rows.Scan(&what, &n); err != nil {
			return nil, err
		}
		if n < r.Succeeded || n > r.Succeeded+r.Unknown {
			failures = append(failures, fmt.Sprintf("%s: %d, acknowledged %d", what, n, r.Succeeded))
		}
	}
	return failures, rows.Err()
}

// judgeCheckout computes the ratios to the better baseline, and compares that of the hot item with the target.
func (r *Report) judgeCheckout() {
	const what = "one hot item, 256 callers over Connect"
	want := fmt.Sprintf(">= %.4g × PL/pgSQL", checkoutTimes)
	best := map[bool]float64{}
	for i := range r.Results {
		if x := &r.Results[i]; x.Kind == load.CheckoutBaseline {
			best[x.Hot] = max(best[x.Hot], x.PerSecond)
		}
	}
	measured := false
	for i := range r.Results {
		x := &r.Results[i]
		if best[x.Hot] == 0 {
			continue
		}
		x.Ratio = x.PerSecond / best[x.Hot]
		if x.Hot && x.Kind == load.Checkout {
			r.target(what, want, fmt.Sprintf("%.2f ×", x.Ratio), x.Ratio >= checkoutTimes)
			measured = true
		}
	}
	if !measured {
		r.unmeasured(what, want)
	}
}

func (r *Report) checkoutSections() []section {
	rows := [][]string{{"case", "what", "callers", "items", "orders/s [min..max]", "p50", "p99", "× PL/pgSQL",
		"CPU µs client + server + Postgres"}}
	for i := range r.Results {
		x := &r.Results[i]
		name, items := x.Name, thousands(spreadItems)
		if x.noisy() {
			name += " (noisy)"
		}
		if x.Hot {
			items = "one hot"
		}
		rows = append(rows, []string{name, x.What, thousands(float64(x.Callers)), items, x.rate(), milliseconds(x.P50),
			milliseconds(x.P99), x.ratio(), x.CPU.String()})
	}
	return []section{{text: "Load, gateway, service and database share the machine. " +
		"Times are those of a whole order. " +
		r.length()}, {rows: rows}}
}
