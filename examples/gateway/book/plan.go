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

// Plan is the script of a payment and of its faults. The zero value waits for a payer, and has no faults.
type Plan struct {
	// Payer is the script of the payer: pay, decline, pending, decline_then_pay, pending_then_pay,
	// pending_then_decline. Empty: the payer acts only by calls of the control API.
	Payer string   `json:"payer,omitempty"`
	After Duration `json:"after,omitzero"` // wait before each act

	Amount   string   `json:"amount,omitempty"` // paid instead of the requested amount, in major units
	Currency string   `json:"currency,omitempty"`
	Wrong    []string `json:"wrong,omitempty"`  // amount, currency, seller, app, mode
	Second   bool     `json:"second,omitempty"` // the payer pays twice, in two transactions

	// Callback is empty, or never: notices are lost, and only a query returns the outcome.
	Callback     string   `json:"callback,omitempty"`
	BeforeAnswer bool     `json:"before_answer,omitempty"` // the payer acts, and notices go out, before the API answers
	Late         Duration `json:"late,omitzero"`           // wait before the first attempt
	Hold         int      `json:"hold,omitempty"`          // hold this many, then send newest first; -1: until Release
	Copies       int      `json:"copies,omitempty"`        // additional copies of each notice at the same moment
	Repeats      int      `json:"repeats,omitempty"`       // repeats of each notice after its acknowledgement
	Forge        []string `json:"forge,omitempty"`         // forged notices that precede each true one

	// Refund is the script of refunds: fail, refuse (the API refuses the call), pending, pending_then_fail, abnormal,
	// abnormal_then_succeed. Empty: they succeed, at once or a moment later, as is usual with the vendor.
	Refund string `json:"refund,omitempty"`

	API map[string]Fault `json:"api,omitempty"` // by operation: create, query, close, refund, query_refund, or *
}

// Fault is a fault of a call of the API.
type Fault struct {
	Do    string   `json:"do"`
	Times int      `json:"times,omitempty"` // 0: once; -1: always
	After Duration `json:"after,omitzero"`  // for slow; 0: 3 s
}

// Kinds of faults.
const (
	Lost       = "lost"        // takes effect, then the connection breaks
	Hang       = "hang"        // takes effect, but does not answer until the caller gives up
	Drop       = "drop"        // has no effect, and the connection breaks
	Error      = "error"       // has no effect, answers 500
	ErrorAfter = "error_after" // takes effect, answers 500
	Busy       = "busy"        // has no effect, answers 429
	Slow       = "slow"        // takes effect, answers late
	BadSign    = "forged"      // takes effect, answers with the signature of a foreign key
	NoSign     = "unsigned"    // takes effect, answers without a signature
	ProbeSign  = "probe"       // takes effect, answers with a test signature, as the vendor does to probe verification
)

// Weighted is a plan with its weight in a mix.
type Weighted struct {
	Weight uint32 `json:"weight"`
	Plan   Plan   `json:"plan"`
}

// Plans holds the plans of all payments. The order of precedence is ByNumber, Mix, Default.
type Plans struct {
	Default  Plan            `json:"default"`
	Mix      []Weighted      `json:"mix,omitempty"` // chosen by a hash of seed and number
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

// Check returns an error that names an unknown value in a plan.
func (p *Plan) Check() error {
	if _, ok := scripts[p.Payer]; !ok {
		return fmt.Errorf("payer: %q is not one of %s", p.Payer, names(scripts))
	}
	if _, ok := refunds[p.Refund]; !ok {
		return fmt.Errorf("refund: %q is not one of %s", p.Refund, names(refunds))
	}
	if p.Callback != "" && p.Callback != "never" {
		return fmt.Errorf("callback: %q is not never", p.Callback)
	}
	for _, w := range p.Wrong {
		if !slices.Contains(wrongs, w) {
			return fmt.Errorf("wrong: %q is not one of %s", w, strings.Join(wrongs, ", "))
		}
	}
	for _, f := range p.Forge {
		if !slices.Contains(Forgeries, Forgery(f)) {
			return fmt.Errorf("forge: %q is not one of %v", f, Forgeries)
		}
	}
	for op, f := range p.API {
		if !slices.Contains(operations, op) {
			return fmt.Errorf("api: %q is not one of %s", op, strings.Join(operations, ", "))
		}
		if !slices.Contains(faults, f.Do) {
			return fmt.Errorf("api.%s.do: %q is not one of %s", op, f.Do, strings.Join(faults, ", "))
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
