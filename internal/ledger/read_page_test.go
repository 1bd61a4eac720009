package ledger_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/paging"
)

// lists returns every paged list as a function that returns the names of its rows.
func (w *readWorld) lists() map[string]func(ledger.Page) ([]string, string, error) {
	statement := func(f ledger.StatementFilter) func(ledger.Page) ([]string, string, error) {
		return func(p ledger.Page) (names []string, next string, err error) {
			lines, next, err := w.Statement(w.ctx, w.tenant, "user:1", "CNY", f, p)
			for _, l := range lines {
				names = append(names, fmt.Sprint(l.Version, ":", l.BizNo))
			}
			return names, next, err
		}
	}
	transfers := func(f ledger.TransferFilter) func(ledger.Page) ([]string, string, error) {
		return func(p ledger.Page) (names []string, next string, err error) {
			transfers, next, err := w.Transfers(w.ctx, w.tenant, f, p)
			for _, t := range transfers {
				names = append(names, t.BizNo)
			}
			return names, next, err
		}
	}
	holds := func(f ledger.HoldFilter) func(ledger.Page) ([]string, string, error) {
		return func(p ledger.Page) (names []string, next string, err error) {
			holds, next, err := w.Holds(w.ctx, w.tenant, f, p)
			for _, h := range holds {
				names = append(names, h.BizNo)
			}
			return names, next, err
		}
	}
	return map[string]func(ledger.Page) ([]string, string, error){
		"accounts": func(p ledger.Page) (names []string, next string, err error) {
			accounts, next, err := w.Accounts(w.ctx, w.tenant, "user:**", "", p)
			for _, a := range accounts {
				names = append(names, a.Code+" "+a.Asset)
			}
			return names, next, err
		},
		"trial balance": func(p ledger.Page) (names []string, next string, err error) {
			b, err := w.TrialBalance(w.ctx, w.tenant, "user:**", "", p)
			if err != nil {
				return nil, "", err
			}
			for _, l := range b.Lines {
				names = append(names, l.Code+" "+l.Asset)
			}
			return names, b.Next, nil
		},
		"statement up":           statement(ledger.StatementFilter{Ascending: true}),
		"statement down":         statement(ledger.StatementFilter{}),
		"statement of odd, up":   statement(ledger.StatementFilter{Type: "odd", Ascending: true}),
		"statement of odd, down": statement(ledger.StatementFilter{Type: "odd"}),
		"transfers":              transfers(ledger.TransferFilter{}),
		"odd transfers":          transfers(ledger.TransferFilter{Type: "odd"}),
		"holds":                  holds(ledger.HoldFilter{}),
		"holds of one":           holds(ledger.HoldFilter{From: "user:1"}),
		"open holds":             holds(ledger.HoldFilter{State: ledger.Held}),
		"open holds of one":      holds(ledger.HoldFilter{From: "user:1", State: ledger.Held}),
	}
}

func (w *readWorld) fill() {
	w.Helper()
	for i := range 5 {
		w.accounts("CNY", fmt.Sprintf("user:%d", i))
		w.accounts("JPY", fmt.Sprintf("user:%d", i))
	}
	for i := range 9 {
		w.transfer(fmt.Sprint("t", i), "world", "user:1", "10", func(p *ledger.TransferParams) {
			p.Type = []string{"even", "odd"}[i%2]
			p.Metadata = map[string]string{"third": fmt.Sprint(i % 3), "i": fmt.Sprint(i)}
		})
	}
	w.transfer("t9", "user:1", "user:2", "30")
	for i := range 7 {
		h := w.hold(fmt.Sprint("h", i), fmt.Sprintf("user:%d", 1+i/5), "1")
		if i%3 == 0 {
			w.do(ledger.ReleaseOf(w.caller(), h.ID, ""))
		}
	}
}

func TestPagesTogetherAreTheWholeList(t *testing.T) {
	t.Parallel()
	w := newReadWorld(t)
	w.fill()
	sizes := map[string]int{"accounts": 10, "trial balance": 10, "statement up": 10, "statement down": 10,
		"transfers":            10,
		"statement of odd, up": 4, "statement of odd, down": 4, "odd transfers": 4, "holds": 7, "holds of one": 5,
		"open holds":        4,
		"open holds of one": 3}
	for name, list := range w.lists() {
		whole, next, err := list(ledger.Page{})
		if err != nil || next != "" || len(whole) != sizes[name] {
			t.Errorf("%s: %q, %q, %v", name, whole, next, err)
		}
		for size := 1; size <= len(whole)+1; size++ {
			var all []string
			token := ""
			for pages := 0; pages <= len(whole)+1; pages++ {
				part, next, err := list(ledger.Page{Size: size, Token: token})
				if err != nil || len(part) > size {
					t.Fatalf("%s by %d: %q, %v", name, size, part, err)
				}
				all = append(all, part...)
				if token = next; token == "" {
					break
				}
			}
			if token != "" || !slices.Equal(all, whole) {
				t.Errorf("%s by %d: %q, want %q", name, size, all, whole)
			}
		}
	}
}

func TestTokenOfAnotherListOrTenantIsRefused(t *testing.T) {
	t.Parallel()
	w := newReadWorld(t)
	w.fill()
	tokens := map[string]string{}
	for name, list := range w.lists() {
		_, next, err := list(ledger.Page{Size: 1})
		if err != nil || next == "" {
			t.Fatalf("%s: %q, %v", name, next, err)
		}
		tokens[name] = next
	}
	for name, list := range w.lists() {
		for from, token := range tokens {
			w.tenant = 1
			if _, _, err := list(ledger.Page{Size: 1, Token: token}); name != from &&
				!fault.Is(err, paging.TokenInvalid) {
				t.Errorf("%s takes a token of %s: %v", name, from, err)
			}
			w.tenant = 2
			if _, _, err := list(ledger.Page{Size: 1, Token: token}); !fault.Is(err, paging.TokenInvalid) {
				t.Errorf("%s of tenant 2 takes a token of %s of tenant 1: %v", name, from, err)
			}
		}
	}
}

func TestListsAreInOrder(t *testing.T) {
	t.Parallel()
	w := newReadWorld(t)
	w.fill()
	for name, want := range map[string]string{
		"accounts": "[user:0 CNY user:0 JPY user:1 CNY user:1 JPY user:2 CNY user:2 JPY user:3 CNY " +
			"user:3 JPY user:4 CNY user:4 JPY]",
		"statement of odd, up":   "[2:t1 4:t3 6:t5 8:t7]",
		"statement of odd, down": "[8:t7 6:t5 4:t3 2:t1]",
		"transfers":              "[t9 t8 t7 t6 t5 t4 t3 t2 t1 t0]",
		"open holds":             "[h5 h4 h2 h1]",
		"open holds of one":      "[h4 h2 h1]",
	} {
		got, _, err := w.lists()[name](ledger.Page{})
		if err != nil || fmt.Sprint(got) != want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

func TestTransferFiltersCombine(t *testing.T) {
	t.Parallel()
	w := newReadWorld(t)
	w.fill()
	t4, t6 := must(w.Transfer(w.ctx, 1, 0, "t4")).RecordedAt, must(w.Transfer(w.ctx, 1, 0, "t6")).RecordedAt
	for _, c := range []struct {
		name   string
		filter ledger.TransferFilter
		want   string
	}{
		{"type", ledger.TransferFilter{Type: "odd"}, "t7 t5 t3 t1 "},
		{"metadata", ledger.TransferFilter{Metadata: map[string]string{"third": "1"}}, "t7 t4 t1 "},
		{"two of metadata", ledger.TransferFilter{Metadata: map[string]string{"third": "1", "i": "4"}}, "t4 "},
		{"type and metadata", ledger.TransferFilter{Type: "even", Metadata: map[string]string{"third": "1"}}, "t4 "},
		{"from is in", ledger.TransferFilter{From: t6}, "t9 t8 t7 t6 "},
		{"just after from is out", ledger.TransferFilter{From: t6.Add(1)}, "t9 t8 t7 "},
		{"before is out", ledger.TransferFilter{From: t4, Before: t6}, "t5 t4 "},
		{"just before before is in", ledger.TransferFilter{From: t4, Before: t6.Add(1)}, "t6 t5 t4 "},
		{"nothing", ledger.TransferFilter{Type: "none"}, ""},
	} {
		got := ""
		transfers, _, err := w.Transfers(w.ctx, 1, c.filter, ledger.Page{})
		for _, x := range transfers {
			got += x.BizNo + " "
			if len(x.Entries) != 2 {
				t.Errorf("%s: %s has %d entries", c.name, x.BizNo, len(x.Entries))
			}
		}
		if got != c.want || err != nil {
			t.Errorf("%s: %q, want %q, %v", c.name, got, c.want, err)
		}
	}
}

func TestStatementHasTheEntriesOfItsTimeRange(t *testing.T) {
	t.Parallel()
	w := newReadWorld(t)
	w.fill()
	t4, t6 := must(w.Transfer(w.ctx, 1, 0, "t4")).RecordedAt, must(w.Transfer(w.ctx, 1, 0, "t6")).RecordedAt
	for _, c := range []struct {
		name         string
		from, before time.Time
		want         string
	}{
		{"all", time.Time{}, time.Time{}, "1 2 3 4 5 6 7 8 9 10 "},
		{"from is in", t6, time.Time{}, "7 8 9 10 "},
		{"just after from is out", t6.Add(1), time.Time{}, "8 9 10 "},
		{"before is out", t4, t6, "5 6 "},
		{"just before before is in", t4, t6.Add(1), "5 6 7 "},
		{"long ago", time.Time{}, t4.Add(-time.Hour), ""},
		{"to come", t4.Add(time.Hour), time.Time{}, ""},
	} {
		got := ""
		lines, _, err := w.Statement(w.ctx, 1, "user:1", "CNY",
			ledger.StatementFilter{From: c.from, Before: c.before, Ascending: true}, ledger.Page{})
		for _, l := range lines {
			got += fmt.Sprint(l.Version, " ")
		}
		if got != c.want || err != nil {
			t.Errorf("%s: %q, want %q, %v", c.name, got, c.want, err)
		}
	}
	lines, _, err := w.Statement(w.ctx, 1, "user:1", "CNY", ledger.StatementFilter{}, ledger.Page{Size: 2})
	if err != nil || len(lines) != 2 || lines[0].After.String() != "6000" || lines[0].Amount.String() != "-3000" ||
		lines[0].Account != "user:1" ||
		lines[1].Metadata["third"] != "2" || lines[1].BizNo != "t8" || lines[1].Type != "even" {
		t.Errorf("newest lines %+v, %v", lines, err)
	}
}
