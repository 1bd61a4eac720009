package bench

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/bench/load"
)

// A short run pays orders in every way, and its report compares them.
func TestCheckoutIsMeasuredAndCounted(t *testing.T) {
	if testing.Short() {
		t.Skip("measures for some seconds")
	}
	o := CheckoutOptions{Options: tiny(t), Items: 10}
	o.Only = []string{"plpgsql-16-*", "connect-*"}
	r, err := RunCheckout(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Results) != 4 || len(r.Targets) != 1 || !r.Targets[0].Measured {
		t.Errorf("%d cases, targets %+v", len(r.Results), r.Targets)
	}
	for i := range r.Results {
		if x := &r.Results[i]; x.PerSecond <= 0 || x.P50 <= 0 || x.P99 < x.P50 || x.Ratio == 0 {
			t.Errorf("%s: %+v", x.Name, x)
		}
	}
	var text bytes.Buffer
	if err := r.WriteMarkdown(&text); err != nil || strings.Count(text.String(), "\n| connect-256-spread") != 1 {
		t.Errorf("report: %v\n%s", err, &text)
	}
}

// The better baseline counts, and a missing one leaves the target open.
func TestCheckoutIsComparedWithTheBetterBaseline(t *testing.T) {
	t.Parallel()
	result := func(kind load.Kind, hot bool, rate float64) Result {
		return Result{Case: Case{Kind: kind, Hot: hot}, Rates: Rates{PerSecond: rate}}
	}
	r := &Report{Results: []Result{result(load.CheckoutBaseline, true, 100), result(load.CheckoutBaseline, true, 110),
		result(load.Checkout, true, 219), result(load.Checkout, false, 300)}}
	r.judgeCheckout()
	if x := r.Targets[0]; x.Got != "1.99 ×" || x.Reached || !x.Measured {
		t.Errorf("%+v", x)
	}
	if r.Results[2].Ratio != 219.0/110 || r.Results[3].Ratio != 0 {
		t.Errorf("%+v", r.Results)
	}
	r = &Report{Results: r.Results[2:]}
	if r.judgeCheckout(); r.Targets[0].Measured {
		t.Errorf("%+v", r.Targets)
	}
}

// Missing rows of acknowledged orders, and counts that disagree, are failures.
func TestUnpaidOrdersAreFound(t *testing.T) {
	if testing.Short() {
		t.Skip("measures for some seconds")
	}
	ctx, o := t.Context(), tiny(t)
	if err := o.defaults(); err != nil {
		t.Fatal(err)
	}
	o.Measure, o.Warmup = 50*time.Millisecond, 0
	cluster, err := startCluster(ctx, &o)
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.stop()
	b, err := cluster.openCheckout(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	run, err := b.run(ctx, &Case{Name: "hot", Kind: load.CheckoutBaseline, Callers: 2, Hot: true})
	if err != nil || len(run.Failures) > 0 || run.Succeeded == 0 {
		t.Fatalf("%v, %+v", err, run)
	}
	told := &load.Result{Succeeded: run.Succeeded}
	for _, x := range []struct{ spoil, want string }{
		{"select", ""},
		{"update stock_items set sold = sold - 1, available = available + 1", "sums that agree"},
		{"delete from ledger_entries where version = 1", "transfers with their entries"},
		{"delete from stock_reservations where reservation_no = (select max(reservation_no) from stock_reservations)",
			"units sold"},
		{"update machine_instances set state = 'created' where machine = 'payment'", "payments succeeded"},
		{"update machine_instances set state = 'cancelled' where machine = 'order'", "orders paid"},
	} {
		if _, err := b.conn.Exec(ctx, x.spoil); err != nil {
			t.Fatal(err)
		}
		failures, err := b.verify(ctx, baseline, "c001", told)
		if err != nil || (x.want == "") != (len(failures) == 0) ||
			!strings.Contains(strings.Join(failures, "; "), x.want) {
			t.Errorf("%s: %v, %v", x.spoil, err, failures)
		}
	}
}
