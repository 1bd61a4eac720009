package bench

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

// A small sale runs in every way, and its report names the targets.
func TestSaleIsMeasuredAndCounted(t *testing.T) {
	if testing.Short() {
		t.Skip("measures for some seconds")
	}
	o := SaleOptions{Options: tiny(t), Units: 100, Buyers: 1000}
	cases := 5
	if _, err := exec.LookPath("redis-server"); err == nil { // elsewhere it is not compared
		o.Redis, cases = "redis-server", 9
	}
	r, err := RunSale(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Sales) != cases || len(r.Targets) != 3 {
		t.Errorf("%d cases, %d targets", len(r.Sales), len(r.Targets))
	}
	for _, x := range r.Sales {
		if x.Answered <= 0 || x.Durable < x.Answered || x.P50 <= 0 || x.P99 < x.P50 {
			t.Errorf("%+v", x)
		}
	}
	var text bytes.Buffer
	if err := r.WriteMarkdown(&text); err != nil || strings.Count(text.String(), "\n| connect-1024 | ") != 1 {
		t.Errorf("report: %v\n%s", err, &text)
	}
}

// A sale is compared with Redis behind the same kind of server, by the time until the orders are durable.
func TestSaleIsComparedWithRedis(t *testing.T) {
	t.Parallel()
	r := &Report{Document: SaleDocument, Sales: []SaleResult{{Name: "connect-256", Answered: 9, Durable: 10},
		{Name: "redis-connect-256", Answered: 8}, {Name: "connect-1024", Durable: 8},
		{Name: "redis-connect-1024", Answered: 8}, {Name: "many", Answered: manyAnswered + 1}}}
	r.judgeSale()
	for i, want := range []bool{false, true, false} {
		if x := r.Targets[i]; x.Reached != want || !x.Measured {
			t.Errorf("%+v", x)
		}
	}
	r = &Report{Document: SaleDocument}
	if r.judgeSale(); len(r.Targets) != 3 || r.Targets[0].Measured || r.Targets[2].Measured {
		t.Errorf("%+v", r.Targets)
	}
}
