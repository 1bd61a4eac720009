package settlement_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/importer/importertest"
	"github.com/ledgerd/ledgerd/internal/importer/settlement"
)

const examples = "../../../examples/reconcile/"

// result is a report.
type result struct {
	Counts   map[string]int
	Findings []settlement.Finding
	Posting  string
	Matches  bool
	Start    time.Time `json:"start_time"`
	End      time.Time `json:"end_time"`

	err  error
	said string
}

func (r *result) String() string {
	s := fmt.Sprint(r.Counts, " ", r.Posting)
	for _, f := range r.Findings {
		s += fmt.Sprintf("\n%s %s line %d %s %s %s: %s, %s: %s", f.Result, f.Subject, f.Line, f.TransactionID,
			f.RefundNo, f.BizNo,
			f.Gateway, f.Ledgerd, f.Detail)
	}
	return s + "\n" + r.said + fmt.Sprint(r.err)
}

type shop struct{ *importertest.Shop }

func newShop(t *testing.T) *shop { return &shop{importertest.NewShop(t)} }

// run reconciles files, by default with a mapping of the examples.
func (s *shop) run(mapping string, files []string, change ...func(*settlement.Options)) *result {
	s.Helper()
	var out, errOut bytes.Buffer
	o := settlement.Options{Paths: files, Mapping: mapping, JSON: true, Client: s.Client, Out: &out, Err: &errOut}
	for _, f := range change {
		f(&o)
	}
	r := &result{err: settlement.Run(s.Context(), o)}
	r.said = errOut.String()
	if out.Len() > 0 {
		if err := json.Unmarshal(out.Bytes(), r); err != nil {
			s.Fatalf("%v: %s", err, out.String())
		}
	}
	return r
}

func post(o *settlement.Options) { o.Post = true }

// changed is a copy of an example with other bytes.
func changed(t *testing.T, name string, pairs ...string) string {
	t.Helper()
	text, err := os.ReadFile(examples + name)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(pairs); i += 2 {
		if !bytes.Contains(text, []byte(pairs[i])) {
			t.Fatalf("%s has no %q", name, pairs[i])
		}
	}
	return importertest.Write(t, filepath.Base(name), strings.NewReplacer(pairs...).Replace(string(text)))
}

// wants fails the test unless the counts are as given, such as "matched 3, not_posted 2".
func (r *result) wants(t *testing.T, counts string) {
	t.Helper()
	want, got := map[string]int{}, map[string]int{}
	for part := range strings.SplitSeq(counts, ", ") {
		var name string
		var n int
		if _, err := fmt.Sscan(part, &name, &n); err != nil {
			t.Fatal(err)
		}
		want[name] = n
	}
	for name, n := range r.Counts {
		got[name] = n
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v: %s", got, want, r)
	}
}

func TestTheExamplesMatchOnceTheirFeesArePosted(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.PayExamples()
	for _, x := range []struct{ name, asset, before, posted, fees, clearing string }{
		{"stripe", "USD", "matched 3, not_posted 3", "3 posted, 0 existed already", "4.21", "-54.71"},
		{"stripe-payouts", "USD", "not_posted 1", "1 posted, 0 existed already", "4.21", "-101.00"},
		{"alipay", "CNY", "matched 3, not_posted 3", "3 posted, 0 existed already", "1.50", "-251.40"},
		{"wechat", "CNY", "matched 3, not_posted 3", "3 posted, 0 existed already", "0.94", "-166.94"},
	} {
		gateway, _, _ := strings.Cut(x.name, "-")
		mapping, files := examples+x.name+".yaml", []string{examples + x.name + ".csv"}
		r := s.run(mapping, files)
		r.wants(t, x.before)
		if !errors.Is(r.err, settlement.ErrMismatch) {
			t.Errorf("%s: %v", x.name, r.err)
		}
		if r = s.run(mapping, files, post); r.err != nil || r.Posting != x.posted || !r.Matches {
			t.Errorf("%s: posted: %s", x.name, r)
		}
		if got := s.Balance("expense:fees:"+gateway, x.asset); got != x.fees {
			t.Errorf("%s: fees %s, not %s", x.name, got, x.fees)
		}
		if got := s.Balance("gateway:"+gateway, x.asset); got != x.clearing {
			t.Errorf("%s: clearing %s, not %s", x.name, got, x.clearing)
		}
		if r = s.run(mapping, files, post); r.err != nil ||
			!strings.HasSuffix(r.Posting, "existed already: this run changed nothing") {
			t.Errorf("%s: posted again: %s", x.name, r)
		}
		if r = s.run(mapping, files); r.err != nil || !r.Matches {
			t.Errorf("%s: afterwards: %s", x.name, r)
		}
	}
	if got := s.Balance("assets:bank", "USD"); got != "46.29" {
		t.Errorf("the bank has %s", got)
	}
}

func TestWhatDiffersIsReported(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.PayExamples()
	s.Pay(importertest.Said{Gateway: "wechat", Number: "shop-3003", ID: "42-more", Amount: "7.00", Currency: "CNY",
		At: time.Date(2026, 11, 3, 15, 59, 59, 0, time.UTC)}) // 23:59:59 in China: the last second of the file
	s.Pay(importertest.Said{Gateway: "wechat", Number: "shop-3004", ID: "42-next", Amount: "7.00", Currency: "CNY",
		At: time.Date(2026, 11, 3, 16, 0, 0, 0, time.UTC)}) // the next day's file
	// Without totals and fees: the rows alone.
	rows := changed(t, "wechat.yaml", "accounts: {fee: \"expense:fees:wechat\"}", "", "总交易单数: rows\n", "",
		"手续费总金额: rows 手续费\n", "", "订单总金额: rows 订单金额\n", "", "申请退款总金额: rows 申请退款金额\n", "")
	for name, x := range map[string]struct {
		pairs  []string
		want   string
		detail string
	}{
		"nothing": {nil, "matched 3, missing_at_gateway 1", ""},
		"amount": {[]string{"`66.00,`0.00,`\r\n", "`66.01,`0.00,`\r\n"},
			"matched 2, differs 1, missing_at_gateway 1", "amount"},
		"currency": {[]string{"`CNY,`66.00", "`HKD,`66.00"}, "matched 2, differs 1, missing_at_gateway 1",
			"currency is CNY in ledgerd and HKD at the gateway"},
		"number": {[]string{"shop-3001", "shop-9001"}, "matched 2, differs 1, missing_at_gateway 1",
			"out_trade_no is shop-3001"},
		"transaction": {[]string{"4200000000202611030000003001", "4299999999202611030000003001"},
			"matched 2, missing_in_ledgerd 1, missing_at_gateway 2", ""},
		"refund's number": {[]string{"refund-3002", "refund-9002"}, "matched 2, missing_in_ledgerd 1, " +
			"missing_at_gateway 1", ""},
		"refund's amount": {[]string{"`0.00,`28.00,`\r\n", "`0.00,`28.10,`\r\n"},
			"matched 2, differs 1, missing_at_gateway 1", "amount"},
		"refund's id": {[]string{"50300000002026110300000003002", "5"}, "matched 2, differs 1, missing_at_gateway 1",
			"refund_id is"},
		"refund failed": {[]string{"`PROCESSING", "`FAIL"}, "matched 2, differs 1, missing_at_gateway 1",
			"succeeded in ledgerd, and failed at the gateway"},
		"unknown kind": {[]string{"`JSAPI,`SUCCESS", "`JSAPI,`\x1b[31mREVOKED"},
			"matched 2, other 1, missing_at_gateway 2", "?[31mREVOKED"},
		"trailing zeros": {[]string{"`66.00,`0.00,`\r\n", "`66.000,`0.00,`\r\n"}, "matched 3, missing_at_gateway 1",
			""},
		"not exact enough": {[]string{"`66.00,`0.00,`\r\n", "`66.000000000000000001,`0.00,`\r\n"},
			"matched 2, differs 1, missing_at_gateway 1", "amount"},
	} {
		r := s.run(rows, []string{changed(t, "wechat.csv", x.pairs...)})
		r.wants(t, x.want)
		if !errors.Is(r.err, settlement.ErrMismatch) || !strings.Contains(r.String(), x.detail) {
			t.Errorf("%s: %s", name, r)
		}
	}
	r := s.run(rows, []string{examples + "wechat.csv"}, func(o *settlement.Options) { o.End = "2026-11-03T15:59:59Z" })
	if r.err != nil || !r.Matches {
		t.Errorf("a period that ends earlier: %s", r)
	}
}
