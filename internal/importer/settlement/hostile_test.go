package settlement_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ledgerd/ledgerd/internal/importer/importertest"
	"github.com/ledgerd/ledgerd/internal/importer/settlement"
)

func TestBadFilesAreRefusedBeforeAnythingIsCompared(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.PayExamples()
	for name, x := range map[string]struct {
		example string
		pairs   []string
		want    string
	}{
		"an amount in words": {"wechat.csv", []string{"`66.00,`0.00,`\r\n", "`NaN,`0.00,`\r\n"},
			"line 2, column 订单金额"},
		"an exponent": {"wechat.csv", []string{"`66.00,`0.00,`\r\n", "`1e3,`0.00,`\r\n"},
			"line 2, column 订单金额"},
		"a negative payment": {"wechat.csv", []string{"`66.00,`0.00,`\r\n", "`-66.00,`0.00,`\r\n"},
			"must be above zero"},
		"39 digits": {"wechat.csv",
			[]string{"`66.00,`0.00,`\r\n", "`" + strings.Repeat("9", 39) + ",`0.00,`\r\n"}, "line 2, column 订单金额"},
		"a number with a newline": {"stripe.csv", []string{"pi_1001", "\"pi_\n1001\""},
			"line 2, column payment_intent_id"},
		"an escape sequence": {"stripe.csv", []string{"pi_1001", "pi_\x1b[2J"}, `"pi_\x1b[2J" is not a number`},
		"no number":          {"stripe.csv", []string{"pi_1001", ""}, "is empty: a payment without its number"},
		"a long number": {"stripe.csv", []string{"pi_1001", strings.Repeat("p", 65)},
			"is not a number of at most 64"},
		"a date":           {"stripe.csv", []string{"2026-11-03 09:12:44", "03/11/2026"}, "is not a date"},
		"a missing column": {"stripe.csv", []string{"payment_intent_id", "pi"}, "there is no column"},
		"an open quote":    {"stripe.csv", []string{`tea"`, `tea`}, "line 2"},
		"a short row":      {"wechat.csv", []string{",`0.60%,`66.00,`0.00,`", ""}, "has 23 columns, not 27"},
		"a line twice":     {"stripe.csv", []string{"txn_1002", "txn_1001"}, "is the same payment as line 2"},
		"a payment twice": {"wechat.csv", []string{"4200000000202611030000003002,`shop-3002,`oUser2,`NATIVE,`SUCCESS",
			"4200000000202611030000003001,`shop-3002,`oUser2,`NATIVE,`SUCCESS"}, "is the same payment as line 2"},
		"rows after the totals": {"wechat.csv", []string{"`194.00,`28.00\r\n", "`194.00,`28.00\r\n`1,`2\r\n"},
			"is a row after the totals"},
		"another encoding":  {"alipay.csv", []string{"\xd6\xa7\xb8\xb6", "\xff\xff\xff\xff"}, "there is no column"},
		"a period in words": {"alipay.csv", []string{"[2026", "[abcd"}, "is not in the mapping's period.format"},
	} {
		mapping := examples + strings.TrimSuffix(x.example, ".csv") + ".yaml"
		r := s.run(mapping, []string{changed(t, x.example, x.pairs...)}, post)
		if r.err == nil || !strings.Contains(r.String(), x.want) || r.Counts != nil {
			t.Errorf("%s: %s", name, r)
		}
	}
	for name, text := range map[string]string{"empty": "",
		"header alone": strings.SplitAfter(read(t, "stripe.csv"), "\n")[0],
		"binary":       "\x00\x01\xff,\x00\n", "long line": strings.Repeat("x", 2<<20)} {
		if r := s.run(examples+"stripe.yaml", []string{importertest.Write(t, "f.csv", text)}, post); r.err == nil ||
			r.Counts != nil {
			t.Errorf("%s: %s", name, r)
		}
	}
	if n := s.Balance("expense:fees:stripe", "USD"); n != "not_found" {
		t.Errorf("fees of %s were posted", n)
	}
}

func read(t *testing.T, name string) string { return readPath(t, examples+name) }

func readPath(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Totals show that a file is cut off, or was edited.
func TestTotalsThatAreNotThoseOfTheRowsPreventPosting(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.PayExamples()
	wechat, alipay := read(t, "wechat.csv"), read(t, "alipay.csv")
	for name, text := range map[string]string{
		"wechat cut":    wechat[:strings.Index(wechat, "总交易单数")],
		"wechat edited": strings.Replace(wechat, "`0.94000", "`0.95000", 1),
		"wechat short": strings.Join(append(strings.SplitAfter(wechat, "\r\n")[:2],
			strings.SplitAfter(wechat, "\r\n")[3:]...), ""),
	} {
		r := s.run(examples+"wechat.yaml", []string{importertest.Write(t, "f.csv", text)}, post)
		if r.err == nil || r.Matches || r.Counts["totals_differ"] == 0 ||
			!strings.Contains(r.String(), "nothing was posted") {
			t.Errorf("%s: %s", name, r)
		}
	}
	for name, text := range map[string]string{
		"alipay cut": strings.Join(strings.SplitAfter(alipay, "\r\n")[:7], ""),
		"alipay short": strings.Join(append(strings.SplitAfter(alipay, "\r\n")[:5],
			strings.SplitAfter(alipay, "\r\n")[6:]...), ""),
	} {
		r := s.run(examples+"alipay.yaml", []string{importertest.Write(t, "f.csv", text)}, post)
		if r.err == nil || r.Matches || r.Counts["totals_differ"] == 0 {
			t.Errorf("%s: %s", name, r)
		}
	}
	for _, name := range []string{"wechat", "alipay"} {
		if n := s.Balance("expense:fees:"+name, "CNY"); n != "not_found" {
			t.Errorf("fees of %s were posted", n)
		}
	}
}

func TestNothingIsPostedIfOneFeeCannotBe(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.PayExamples()
	file := changed(t, "wechat.csv", "`0.40000", "`0.40001", "`0.94000", "`0.94001")
	r := s.run(examples+"wechat.yaml", []string{file}, post)
	if r.err == nil || !strings.Contains(r.String(), "0.40001 has more decimals than CNY") ||
		r.Counts["not_posted"] != 3 {
		t.Errorf("%s", r)
	}
	for want, change := range map[string]func(*settlement.Options){
		"no gateway":                  func(o *settlement.Options) { o.Gateway = "paypal" },
		"its account is the clearing": func(o *settlement.Options) { o.Accounts.Fee = "gateway:wechat" },
		"clearing account gateway:alipay": func(o *settlement.Options) {
			o.Gateway, o.Mapping, o.Paths = "alipay", examples+"stripe-payouts.yaml",
				[]string{examples + "stripe-payouts.csv"}
		},
		"must be a date": func(o *settlement.Options) { o.Start = "yesterday" },
	} {
		if r := s.run(examples+"wechat.yaml", []string{examples + "wechat.csv"}, post, change); r.err == nil ||
			!strings.Contains(r.String(), want) {
			t.Errorf("%s: %s", want, r)
		}
	}
	if n := s.Balance("expense:fees:wechat", "CNY"); n != "not_found" {
		t.Errorf("fees of %s were posted", n)
	}
}

// The fee of a payment that the ledger does not have is not posted, and one that has changed is not posted again.
func TestFeesThatDifferAreReported(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.PayExamples()
	unknown := changed(t, "stripe.csv", "pi_1001", "pi_9001")
	s.run(examples+"stripe.yaml", []string{unknown}, post).
		wants(t, "matched 2, missing_in_ledgerd 1, missing_at_gateway 1, posted 2")
	if n := s.Balance("expense:fees:stripe", "USD"); n != "3.33" {
		t.Errorf("fees: %s", n)
	}
	edited := changed(t, "stripe.csv", "35.50,1.33", "35.50,1.34")
	r := s.run(examples+"stripe.yaml", []string{edited}, post)
	r.wants(t, "matched 3, fee_differs 1, posted 2")
	if r.err == nil || !strings.Contains(r.String(), "fee/stripe/line/txn_1002: 1.34, 1.33") {
		t.Errorf("%s", r)
	}
	gone := changed(t, "stripe.csv", "35.50,1.33", "35.50,0.00")
	s.run(examples+"stripe.yaml", []string{gone}).wants(t, "matched 3, fee_differs 1, posted 2")
	if n := s.Balance("expense:fees:stripe", "USD"); n != "4.21" {
		t.Errorf("fees: %s", n)
	}
}

func TestOverlappingFilesPostOnce(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.PayExamples()
	lines := strings.SplitAfter(read(t, "stripe.csv"), "\n")
	first := importertest.Write(t, "first.csv", lines[0]+lines[1]+lines[2])
	second := importertest.Write(t, "second.csv", lines[0]+lines[2]+lines[3]+lines[4])
	if r := s.run(examples+"stripe.yaml", []string{first}, post); r.Posting != "2 posted, 0 existed already" {
		t.Errorf("%s", r)
	}
	if r := s.run(examples+"stripe.yaml", []string{second}, post); r.Posting != "1 posted, 1 existed already" {
		t.Errorf("%s", r)
	}
	r := s.run(examples+"stripe.yaml", []string{first, second}, post)
	if r.err != nil || !strings.Contains(r.Posting, "this run changed nothing") {
		t.Errorf("%s", r)
	}
	edited := importertest.Write(t, "edited.csv", strings.Replace(lines[0]+lines[2], "35.50", "35.60", 2))
	if r := s.run(examples+"stripe.yaml", []string{first, edited}, post); r.err == nil ||
		!strings.Contains(r.said, "is not as in") {
		t.Errorf("%s", r)
	}
}

// A run that dies while it posts can be repeated, no matter which calls have reached the server.
func TestAnInterruptedRunContinues(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	text, total := strings.SplitAfter(read(t, "stripe-payouts.csv"), "\n"), 2500
	rows := text[0]
	for i := range total {
		rows += fmt.Sprintf("po_%d,2026-11-05 00:00:00,txn_%d,usd,-1.00,0.00,-1.00,payout,P,2026-11-05,paid,"+
			"bank_account\n", i, i)
	}
	file := importertest.Write(t, "payouts.csv", rows)
	target, _ := url.Parse(s.URL)
	proxy := httputil.NewSingleHostReverseProxy(target)
	ctx, kill := context.WithCancel(t.Context())
	var calls atomic.Int32
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		proxy.ServeHTTP(w, r)
		if strings.HasSuffix(r.URL.Path, "/TransferBatch") && calls.Add(1) == 2 {
			kill()
		}
	}))
	defer front.Close()
	err := settlement.Run(ctx, settlement.Options{Paths: []string{file}, Mapping: examples + "stripe-payouts.yaml",
		Post:   true,
		Client: importertest.Dial(front.URL), Out: &strings.Builder{}, Err: &strings.Builder{}})
	if err == nil || s.Balance("assets:bank", "USD") == "2500.00" {
		t.Fatalf("the run was not interrupted: %v", err)
	}
	r := s.run(examples+"stripe-payouts.yaml", []string{file}, post)
	if r.err != nil || r.Counts["posted"] != total || s.Balance("assets:bank", "USD") != "2500.00" {
		t.Errorf("%.500s, %s", r, s.Balance("assets:bank", "USD"))
	}
	if !strings.HasPrefix(r.Posting, "500 posted, 2,000 existed") {
		t.Errorf("%s", r.Posting)
	}
}
