package settlement

import (
	"cmp"
	"strings"
	"time"

	paymentv1 "github.com/ledgerd/ledgerd/gen/ledgerd/payment/v1"
	"github.com/ledgerd/ledgerd/internal/amount"
)

// Result is the outcome of one comparison.
type Result string

// Results. All but Matched, Posted and Pending are mismatches.
const (
	Matched          Result = "matched"
	MissingInLedgerd Result = "missing_in_ledgerd"
	MissingAtGateway Result = "missing_at_gateway"
	Differs          Result = "differs"
	Posted           Result = "posted"      // a fee or payout is in the ledger, with the amount of the file
	NotPosted        Result = "not_posted"  // a fee or payout is not in the ledger
	FeeDiffers       Result = "fee_differs" // a fee or payout is in the ledger, with another amount
	Pending          Result = "pending"     // the gateway has not decided
	Other            Result = "other"       // a row of a kind that the mapping does not name
	TotalsDiffer     Result = "totals_differ"
)

// results in the order of reports.
var results = []Result{Matched, MissingInLedgerd, MissingAtGateway, Differs, Posted, NotPosted, FeeDiffers, Pending,
	Other, TotalsDiffer}

// mismatch reports whether a result is a difference between gateway and ledger.
func (r Result) mismatch() bool { return r != Matched && r != Posted && r != Pending }

// Finding is a row of a report.
type Finding struct {
	Result        Result    `json:"result"`
	Subject       string    `json:"subject,omitempty"`
	File          string    `json:"file,omitempty"`
	Line          int       `json:"line,omitempty"`
	TransactionID string    `json:"transaction_id,omitempty"`
	OutTradeNo    string    `json:"out_trade_no,omitempty"`
	RefundNo      string    `json:"refund_no,omitempty"`
	RefundID      string    `json:"refund_id,omitempty"`
	BizNo         string    `json:"biz_no,omitempty"`
	Time          time.Time `json:"time,omitzero"`
	Currency      string    `json:"currency,omitempty"`
	Gateway       string    `json:"gateway_amount,omitempty"`
	Ledgerd       string    `json:"ledgerd_amount,omitempty"`
	Detail        string    `json:"detail,omitempty"`
}

func (l *line) finding(r Result, details ...string) *Finding {
	return &Finding{Result: r, Subject: string(l.kind), File: l.file, Line: l.number, TransactionID: l.transactionID,
		OutTradeNo: l.outTradeNo, RefundNo: l.refundNo, RefundID: l.refundID, Time: l.at, Currency: l.currency,
		Gateway: l.amount.String(), Detail: strings.Join(details, "; ")}
}

// comparison compares the lines of a gateway with the books.
type comparison struct {
	*books
	m          *Mapping
	lines      []*line
	start, end time.Time
	failures   map[*paymentv1.Refund]bool // refunds that failed later, by a line of their own
	seen       map[any]bool
	findings   []*Finding
	matched    map[*line]bool // payments and refunds that are in the books
	assets     map[string]string
}

func compare(b *books, m *Mapping, lines []*line, start, end time.Time) *comparison {
	c := &comparison{books: b, m: m, lines: lines, start: start, end: end, failures: map[*paymentv1.Refund]bool{},
		seen: map[any]bool{}, matched: map[*line]bool{}, assets: map[string]string{}}
	for _, t := range b.transactions {
		if t.GetAsset() != "" {
			c.assets[t.GetCurrency()] = t.GetAsset()
		}
	}
	for _, l := range lines {
		if x := b.refund(l); l.kind == refundFailure && x != nil {
			c.failures[x] = true
		}
	}
	for _, l := range lines {
		switch l.kind {
		case payment:
			c.payment(l)
		case refund, refundFailure:
			c.refundLine(l)
		case other:
			c.add(l.finding(Other, "the mapping does not name "+quoted(l.said)))
		}
	}
	c.missing()
	return c
}

func (c *comparison) add(f *Finding) { c.findings = append(c.findings, f) }

func (c *comparison) payment(l *line) {
	t := c.transactions[l.transactionID]
	if t == nil {
		c.add(l.finding(MissingInLedgerd))
		return
	}
	c.seen[t], c.matched[l] = true, true
	var d []string
	d = differ(d, "out_trade_no", l.outTradeNo, t.GetOutTradeNo())
	d = differ(d, "currency", l.currency, t.GetCurrency())
	c.judge(l, t.GetAmount(), d)
}

// differ adds a difference to d if the file's value differs from ledgerd's.
func differ(d []string, what, theirs, ours string) []string {
	if theirs == "" || theirs == ours {
		return d
	}
	return append(d, what+" is "+quoted(ours)+" in ledgerd and "+quoted(theirs)+" at the gateway")
}

// judge compares the amounts, and adds the finding.
func (c *comparison) judge(l *line, ours string, d []string) {
	n, err := amount.ParseDecimal(ours)
	if err != nil || n != l.amount {
		d = append(d, "amount")
	}
	result := Matched
	if len(d) > 0 {
		result = Differs
	}
	f := l.finding(result, d...)
	f.Ledgerd = ours
	c.add(f)
}

func (c *comparison) refundLine(l *line) {
	x := c.refund(l)
	if x == nil {
		c.add(l.finding(MissingInLedgerd))
		return
	}
	c.seen[x], c.matched[l] = true, true
	var d []string
	d = differ(d, "transaction_id", l.transactionID, x.GetTransactionId())
	d = differ(d, "out_trade_no", l.outTradeNo, x.GetOutTradeNo())
	if x.GetGatewayRefundId() != "" {
		d = differ(d, "refund_id", l.refundID, x.GetGatewayRefundId())
	}
	d = differ(d, "asset", c.asset(l.currency), x.GetAsset())
	if says := c.state(l, x); says != "" {
		d = append(d, "the refund is "+stateOf(x)+" in ledgerd, and "+says+" at the gateway")
	}
	c.judge(l, x.GetAmount(), d)
}

// state returns the state of a refund by a line if it contradicts ledgerd's, or "".
func (c *comparison) state(l *line, x *paymentv1.Refund) string {
	succeeded := x.GetState() == paymentv1.RefundState_REFUND_STATE_SUCCEEDED
	switch {
	case l.pending:
		return ""
	case l.kind == refundFailure || l.failed:
		if succeeded {
			return "failed"
		}
	case !succeeded && !c.failures[x]:
		return "succeeded"
	}
	return ""
}

func stateOf(x *paymentv1.Refund) string {
	return strings.ToLower(strings.TrimPrefix(x.GetState().String(), "REFUND_STATE_"))
}

// asset returns the asset of a currency: from the mapping, else from a transaction, else the same code.
func (c *comparison) asset(currency string) string {
	return cmp.Or(c.m.Assets[currency], c.assets[currency], currency)
}

// missing adds the payments and refunds of the period that the files lack.
func (c *comparison) missing() {
	within := func(t time.Time) bool { return !t.Before(c.start) && t.Before(c.end) }
	for _, id := range sorted(c.transactions) {
		t := c.transactions[id]
		at := paidAt(t)
		if within(at) && !c.seen[t] {
			c.add(&Finding{Result: MissingAtGateway, Subject: string(payment), TransactionID: id,
				OutTradeNo: t.GetOutTradeNo(), Time: at, Currency: t.GetCurrency(), Ledgerd: t.GetAmount()})
		}
	}
	for _, no := range sorted(c.refunds) {
		x := c.refunds[no]
		at := x.GetCreateTime().AsTime()
		if c.m.Refund.Time == "succeeded" {
			at = x.GetUpdateTime().AsTime()
		}
		if x.GetState() == paymentv1.RefundState_REFUND_STATE_SUCCEEDED && within(at) && !c.seen[x] {
			c.add(&Finding{Result: MissingAtGateway, Subject: string(refund), TransactionID: x.GetTransactionId(),
				OutTradeNo: x.GetOutTradeNo(), RefundNo: no, RefundID: x.GetGatewayRefundId(), Time: at,
				Currency: x.GetAsset(), Ledgerd: x.GetAmount()})
		}
	}
}
