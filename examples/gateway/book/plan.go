package book

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"
)

// Duration is a time.Duration written as "1.5s".
type Duration time.Duration

func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err == nil && v < 0 {
		err = fmt.Errorf("duration %s is negative", text)
	}
	*d = Duration(v)
	return err
}

// Plan is the fate of a payment. The zero value waits for a payer, and lets nothing go astray.
type Plan struct {
	// Payer is what the payer does by itself: pay, decline, pending, decline_then_pay, pending_then_pay,
	// pending_then_decline. Empty: it waits for a call of the control API.
	Payer string   `json:"payer,omitempty"`
	After Duration `json:"after,omitzero"` // before each act

	Amount   string   `json:"amount,omitempty"` // major units: paid instead of the amount asked for
	Currency string   `json:"currency,omitempty"`
	Wrong    []string `json:"wrong,omitempty"`  // amount, currency, seller, app, mode
	Second   bool     `json:"second,omitempty"` // the payer pays twice, in two transactions

	// Callback is never (only a query tells) or empty.
	Callback     string   `json:"callback,omitempty"`
	BeforeAnswer bool     `json:"before_answer,omitempty"` // the payer acts, and notices go out, before the API answers
	Late         Duration `json:"late,omitzero"`           // before the first attempt
	Hold         int      `json:"hold,omitempty"`          // until so many notices wait; then newest first. -1: until released
	Copies       int      `json:"copies,omitempty"`        // more of each notice at the same moment
	Repeats      int      `json:"repeats,omitempty"`       // more of each notice after it was acknowledged
	Forge        []string `json:"forge,omitempty"`         // forged notices that precede each true one

	// Refund is the fate of refunds: fail, refuse (at once, by the API), pending, pending_then_fail, abnormal,
	// abnormal_then_succeed. Empty: they succeed, at once or a moment later, as usual with the vendor.
	Refund string `json:"refund,omitempty"`

	API map[string]Fault `json:"api,omitempty"` // by operation: create, query, close, refund, query_refund, or *
}

// Fault is how a call of the API goes wrong.
type Fault struct {
	Do    string   `json:"do"`
	Times int      `json:"times,omitempty"` // 0: once; -1: always
	After Duration `json:"after,omitzero"`  // for slow; 0: 3 s
}

// Ways in which a call goes wrong.
const (
	Lost       = "lost"        // it takes effect, and the connection breaks
	Hang       = "hang"        // it takes effect, and no answer comes until the caller gives up
	Drop       = "drop"        // no effect, and the connection breaks
	Error      = "error"       // no effect, 500
	ErrorAfter = "error_after" // it takes effect, 500
	Busy       = "busy"        // no effect, 429
	Slow       = "slow"        // it takes effect, and the answer comes late
	BadSign    = "forged"      // it takes effect, and the answer is signed by a foreign key
	NoSign     = "unsigned"    // it takes effect, and the answer is not signed
	ProbeSign  = "probe"       // it takes effect, and the answer is signed as the vendor's probes are
)

// Weighted is a plan of a mix.
type Weighted struct {
	Weight uint32 `json:"weight"`
	Plan   Plan   `json:"plan"`
}

// Plans are those of all payments. The first that there is counts: ByNumber, Mix, Default.
type Plans struct {
	Default  Plan            `json:"default"`
	Mix      []Weighted      `json:"mix,omitempty"` // drawn by the number, so that it is the same after a restart
	Seed     uint64          `json:"seed,omitempty"`
	ByNumber map[string]Plan `json:"by_number,omitempty"`
}

func (p *Plans) of(number string) Plan {
	if plan, ok := p.ByNumber[number]; ok {
		return plan
	}
	total := uint64(0)
	for _, w := range p.Mix {
		total += uint64(w.Weight)
	}
	if total == 0 {
		return p.Default
	}
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%d/%s", p.Seed, number)
	at := h.Sum64() % total
	for _, w := range p.Mix {
		if at < uint64(w.Weight) {
			return w.Plan
		}
		at -= uint64(w.Weight)
	}
	return p.Default
}

var (
	scripts = map[string][]string{
		"": nil, "pay": {"pay"}, "decline": {"decline"}, "pending": {"pending"},
		"decline_then_pay": {"decline", "pay"}, "pending_then_pay": {"pending", "pay"},
		"pending_then_decline": {"pending", "decline"},
	}
	refunds = map[string][]RefundStatus{
		"": nil, "refuse": nil, "fail": {RefundFailed}, "pending": {RefundProcessing},
		"pending_then_fail": {RefundProcessing, RefundFailed}, "abnormal": {RefundAbnormal},
		"abnormal_then_succeed": {RefundAbnormal, RefundSucceeded},
	}
	wrongs     = []string{"amount", "currency", "seller", "app", "mode"}
	operations = []string{"create", "query", "close", "refund", "query_refund", "*"}
	faults     = []string{Lost, Hang, Drop, Error, ErrorAfter, Busy, Slow, BadSign, NoSign, ProbeSign}
)

// Check returns an error that names what is not known in a plan.
func (p *Plan) Check() error {
	if _, ok := scripts[p.Payer]; !ok {
		return fmt.Errorf("payer: %q is none of %s", p.Payer, names(scripts))
	}
	if _, ok := refunds[p.Refund]; !ok {
		return fmt.Errorf("refund: %q is none of %s", p.Refund, names(refunds))
	}
	if p.Callback != "" && p.Callback != "never" {
		return fmt.Errorf("callback: %q is not never", p.Callback)
	}
	for _, w := range p.Wrong {
		if !slices.Contains(wrongs, w) {
			return fmt.Errorf("wrong: %q is none of %s", w, strings.Join(wrongs, ", "))
		}
	}
	for _, f := range p.Forge {
		if !slices.Contains(Forgeries, Forgery(f)) {
			return fmt.Errorf("forge: %q is none of %v", f, Forgeries)
		}
	}
	for op, f := range p.API {
		if !slices.Contains(operations, op) {
			return fmt.Errorf("api: %q is none of %s", op, strings.Join(operations, ", "))
		}
		if !slices.Contains(faults, f.Do) {
			return fmt.Errorf("api.%s.do: %q is none of %s", op, f.Do, strings.Join(faults, ", "))
		}
	}
	return nil
}

func names[V any](m map[string]V) string {
	var all []string
	for name := range m {
		if name != "" {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
