package settlement_test

import (
	"strings"
	"testing"
	"time"

	paymentv1 "github.com/ledgerd/ledgerd/gen/ledgerd/payment/v1"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ledgerd/ledgerd/internal/importer/importertest"
	"github.com/ledgerd/ledgerd/internal/importer/settlement"
)

func TestPayoutsArePostedWhenTheyArePaidAndWhenTheyComeBack(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	lines := strings.SplitAfter(read(t, "stripe-payouts.csv"), "\n")
	pending := strings.Replace(lines[1], ",paid,", ",in_transit,", 1)
	mapping := examples + "stripe-payouts.yaml"
	r := s.run(mapping, []string{importertest.Write(t, "f.csv", lines[0]+pending)}, post)
	r.wants(t, "pending 1")
	if r.err != nil || s.Balance("assets:bank", "USD") != "not_found" {
		t.Errorf("%s", r)
	}
	back := strings.NewReplacer("txn_1005", "txn_1006", "-46.29", "46.29", ",payout,STRIPE",
		",payout_reversal,STRIPE").Replace(lines[1])
	file := importertest.Write(t, "f.csv", lines[0]+lines[1]+back)
	if r = s.run(mapping, []string{file}, post); r.err != nil || r.Counts["posted"] != 2 {
		t.Errorf("%s", r)
	}
	if b, c := s.Balance("assets:bank", "USD"), s.Balance("gateway:stripe", "USD"); b != "0.00" || c != "0.00" {
		t.Errorf("the bank has %s, the gateway %s", b, c)
	}
}

func TestARefundThatFailedLaterHasTwoRows(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.PayExamples()
	s.Refund(importertest.Said{Gateway: "stripe", Number: "shop-1001", Refund: "refund-1001", ID: "re_1001",
		Amount:   "3.00",
		Currency: "USD", Failed: true})
	text := read(t, "stripe.csv")
	row := "txn_2001,2026-11-03 16:00:00,usd,-3.00,0.00,-3.00,refund,re_1001,R,-3.00,usd,pi_1001,shop-1001," +
		"refund-1001\n"
	failed := strings.NewReplacer("txn_2001", "txn_2002", "-3.00", "3.00", ",refund,", ",refund_failure,").Replace(row)
	mapping := changed(t, "stripe.yaml", `accounts: {fee: "expense:fees:stripe"}`, "")
	r := s.run(mapping, []string{importertest.Write(t, "f.csv", text+row)})
	r.wants(t, "matched 3, differs 1")
	if !strings.Contains(r.String(), "the refund is failed in ledgerd, and succeeded at the gateway") {
		t.Errorf("%s", r)
	}
	if r = s.run(mapping, []string{importertest.Write(t, "f.csv", text+row+failed)}); r.err != nil {
		t.Errorf("%s", r)
	}
	s.run(mapping, []string{importertest.Write(t, "f.csv", text+strings.ReplaceAll(failed, "re_1001,", "re_1002,"))}).
		wants(t, "matched 3, differs 1")
}

// A refund made in the gateway's console has no number of ours.
func TestRefundsAreFoundByTheGatewaysNumber(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.PayExamples()
	mapping := changed(t, "stripe.yaml", `accounts: {fee: "expense:fees:stripe"}`, "")
	file := changed(t, "stripe.csv", "shop-1002,refund-1002", "shop-1002,")
	r := s.run(mapping, []string{file})
	if r.wants(t, "matched 3"); r.err != nil {
		t.Errorf("%s", r)
	}
	file = changed(t, "stripe.csv", "shop-1002,refund-1002", "shop-1002,", "re_1002", "re_9002")
	s.run(mapping, []string{file}).wants(t, "matched 2, missing_in_ledgerd 1")
}

func TestARefundThatTheGatewayDoesNotHaveIsReported(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.PayExamples()
	now := time.Now()
	for name, n := range map[string]int{"alipay": 1, "wechat": 1} {
		mapping := changed(t, name+".yaml", `accounts: {fee: "expense:fees:`+name+`"}`, "", "totals:\n", "ignored:\n")
		text, _, _ := strings.Cut(read(t, name+".csv"),
			map[string]string{"alipay": "20261103220014", "wechat": "`"}[name])
		mapping = withoutTotals(t, mapping)
		file := importertest.Write(t, "f.csv", text)
		r := s.run(mapping, []string{file}, func(o *settlement.Options) {
			o.Start, o.End = now.Add(-time.Hour).Format(time.RFC3339), now.Add(time.Hour).Format(time.RFC3339)
		})
		if r.Counts["missing_at_gateway"] != n || !strings.Contains(r.String(), "missing_at_gateway refund") {
			t.Errorf("%s: %s", name, r)
		}
	}
}

// withoutTotals cuts a mapping at its totals.
func withoutTotals(t *testing.T, path string) string {
	t.Helper()
	text, _, _ := strings.Cut(readPath(t, path), "ignored:\n")
	return importertest.Write(t, "m.yaml", text)
}

func TestMappingsAreCheckedFieldByField(t *testing.T) {
	t.Parallel()
	s := &shop{&importertest.Shop{T: t}}
	for want, pairs := range map[string][]string{
		"field fees not found":          {"fee: {column: fee}", "fees: {column: fee}"},
		"field id: is missing":          {"id: balance_transaction_id", ""},
		"field kind.refund: \"charge\"": {"refund: [refund]", "refund: [refund, charge]"},
		"field transaction_id":          {"transaction_id: payment_intent_id", ""},
		"field date.format":             {"YYYY-MM-DD hh:mm:ss", "yesterday"},
		"field fee.sign":                {"fee: {column: fee}", "fee: {column: fee, sign: no}"},
		"field accounts.fee":            {"expense:fees:stripe", "expense::stripe"},
		"field currency":                {"currency: {column: customer_facing_currency}", ""},
		"field refund":                  {"refund: {no: \"refund_metadata[refund_no]\", id: source_id}", ""},
		"field encoding":                {"gateway: stripe\n", "gateway: stripe\nencoding: big5\n"},
		"field totals.begins":           {"gateway: stripe\n", "gateway: stripe\ntotals: {columns: {a: rows}}\n"},
		"field totals.columns.a": {"gateway: stripe\n", "gateway: stripe\ntotals: {begins: x, columns: " +
			"{a: cells}}\n"},
		"give --gateway": {"gateway: stripe\n", ""},
		"--post needs":   {"accounts: {fee: \"expense:fees:stripe\"}", ""},
	} {
		if r := s.run(changed(t, "stripe.yaml", pairs...), []string{examples + "stripe.csv"}, post); r.err == nil ||
			!strings.Contains(r.err.Error(), want) {
			t.Errorf("%s: %v", want, r.err)
		}
	}
}

// Lists of a period have pages, and the tokens of one list do not fit another.
func TestListsOfAPeriodHavePages(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.PayExamples()
	start := timestamppb.New(time.Now().Add(-time.Hour).Truncate(time.Second))
	seen := map[string]bool{}
	q := &paymentv1.ListTransactionsRequest{Gateway: "stripe", StartTime: start, PageSize: 1}
	for pages := 0; pages == 0 || q.PageToken != ""; pages++ {
		r := importertest.OK(s.Shop, s.Client.Payments.ListTransactions, q)
		for _, x := range r.GetTransactions() {
			seen[x.GetTransactionId()+" "+x.GetAmount()+" "+x.GetRefundedAmount()+" "+x.GetAccount()+" "+x.
				GetOutTradeNo()+
				x.GetPayTime().AsTime().Format(" 15:04:05")] = true
		}
		q.PageToken = r.GetNextPageToken()
	}
	if len(seen) != 2 || !seen["pi_1002 35.50 5.00 shop shop-1002 11:40:02"] {
		t.Errorf("transactions: %v", seen)
	}
	all := importertest.OK(s.Shop, s.Client.Payments.ListTransactions, &paymentv1.ListTransactionsRequest{PageSize: 4})
	if len(all.GetTransactions()) != 4 || all.GetNextPageToken() == "" {
		t.Errorf("%d of all", len(all.GetTransactions()))
	}
	for i, x := range all.GetTransactions() {
		if i > 0 && x.GetRecordTime().AsTime().After(all.GetTransactions()[i-1].GetRecordTime().AsTime()) {
			t.Error("not the newest first")
		}
	}
	some := importertest.OK(s.Shop, s.Client.Payments.ListTransactions,
		&paymentv1.ListTransactionsRequest{Gateway: "stripe",
			TransactionIds: []string{"pi_1001", "none", "2026110322001400000000002001"}})
	if len(some.GetTransactions()) != 1 {
		t.Errorf("by number: %v", some)
	}
	early := importertest.OK(s.Shop, s.Client.Payments.ListTransactions,
		&paymentv1.ListTransactionsRequest{EndTime: start})
	refunds := importertest.OK(s.Shop, s.Client.Payments.ListRefunds,
		&paymentv1.ListRefundsRequest{StartTime: start, PageSize: 2})
	rest := importertest.OK(s.Shop, s.Client.Payments.ListRefunds,
		&paymentv1.ListRefundsRequest{StartTime: start, PageSize: 2,
			PageToken: refunds.GetNextPageToken()})
	none := importertest.OK(s.Shop, s.Client.Payments.ListRefunds, &paymentv1.ListRefundsRequest{EndTime: start})
	one := importertest.OK(s.Shop, s.Client.Payments.ListRefunds, &paymentv1.ListRefundsRequest{Gateway: "wechat"})
	if len(early.GetTransactions()) != 0 || len(refunds.GetRefunds()) != 2 || len(rest.GetRefunds()) != 1 ||
		rest.GetNextPageToken() != "" || len(none.GetRefunds()) != 0 || len(one.GetRefunds()) != 1 {
		t.Errorf("%v, %v, %v, %v, %v", early, refunds, rest, none, one)
	}
	for want, q := range map[string]*paymentv1.ListTransactionsRequest{
		"PAGE_TOKEN_INVALID|with these parameters": {Gateway: "stripe", PageToken: all.GetNextPageToken()},
		"transaction_ids: needs":                   {TransactionIds: []string{"pi_1001"}},
	} {
		_, err := s.Client.Payments.ListTransactions(t.Context(), q)
		if _, text, _ := strings.Cut(want, "|"); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := s.Client.Payments.ListRefunds(t.Context(),
		&paymentv1.ListRefundsRequest{OutTradeNo: "shop-1001", Gateway: "stripe"}); err == nil {
		t.Error("a payment and a gateway were accepted")
	}
}
