package stripe

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/gateway"
)

// window is the greatest allowed difference between the time of a signature and our clock. Stripe signs each delivery
// anew.
const window = 5 * time.Minute

// verify checks Stripe-Signature: t=SECONDS,v1=HEX,v1=HEX. There are several v1 while a secret is rolled.
func (g *account) verify(header string, body []byte, now time.Time) error {
	stamp, signatures := "", []string(nil)
	for part := range strings.SplitSeq(header, ",") {
		switch name, value, _ := strings.Cut(strings.TrimSpace(part), "="); name {
		case "t":
			if stamp != "" {
				return fmt.Errorf("%w: it has two times", gateway.ErrForged)
			}
			stamp = value
		case "v1":
			signatures = append(signatures, value)
		}
	}
	if err := gateway.CheckWindow(stamp, now, window); err != nil {
		return err
	}
	for _, secret := range g.secrets {
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(stamp + "."))
		mac.Write(body)
		want := mac.Sum(nil)
		for _, s := range signatures {
			if got, err := hex.DecodeString(s); err == nil && hmac.Equal(got, want) {
				return nil
			}
		}
	}
	return fmt.Errorf("%w: no signature is valid", gateway.ErrForged)
}

type event struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	Account  string `json:"account"`
	Livemode bool   `json:"livemode"`
	Created  int64  `json:"created"`
	Data     struct {
		Object json.RawMessage `json:"object"`
	} `json:"data"`
}

// Notice reads an event. Events about payments without our metadata are Other.
func (g *account) Notice(h http.Header, body []byte, now time.Time) (gateway.Notice, error) {
	if err := g.verify(h.Get("Stripe-Signature"), body, now); err != nil {
		return gateway.Notice{}, err
	}
	var e event
	if err := json.Unmarshal(body, &e); err != nil || e.ID == "" {
		return gateway.Notice{}, fmt.Errorf("%w: it is not the JSON of an event", gateway.ErrFormat)
	}
	n, err := g.about(&e)
	if n.ID = e.ID; e.Created > 0 {
		n.At = time.Unix(e.Created, 0)
	}
	switch {
	case e.Account != g.connected:
		n.Foreign = "account " + e.Account
	case e.Livemode != g.live:
		n.Foreign = mode(e.Livemode)
	}
	return n, err
}

func mode(live bool) string {
	if live {
		return "mode live"
	}
	return "mode test"
}

// eventKinds maps the types of events that ledgerd tracks to kinds of notices. Objects have a status too, but events
// are not ordered, and the object in an event has the status at the time of the event.
var eventKinds = map[string]gateway.Kind{
	"payment_intent.succeeded":       gateway.Paid,
	"payment_intent.payment_failed":  gateway.Declined,
	"payment_intent.processing":      gateway.Pending,
	"payment_intent.requires_action": gateway.Pending,
	"payment_intent.canceled":        gateway.Closed,
	"refund.created":                 gateway.RefundPending,
	"refund.updated":                 gateway.RefundPending,
	"refund.failed":                  gateway.RefundFailed,
	"charge.refund.updated":          gateway.RefundPending,
}

func (g *account) about(e *event) (gateway.Notice, error) {
	kind, followed := eventKinds[e.Type]
	if !followed {
		return gateway.Notice{Kind: gateway.Other}, nil
	}
	if kind.Refund() {
		var r refund
		if err := json.Unmarshal(e.Data.Object, &r); err != nil || r.Object != "refund" {
			return gateway.Notice{}, fmt.Errorf("%w: it has no refund", gateway.ErrFormat)
		}
		if r.PaymentIntent == "" { // of a charge without an intent: another system's
			return gateway.Notice{Kind: gateway.Other}, nil
		}
		n := r.notice()
		if e.Type == "refund.failed" {
			n.Kind = gateway.RefundFailed
		}
		return n, nil
	}
	var p intent
	if err := json.Unmarshal(e.Data.Object, &p); err != nil || p.Object != "payment_intent" {
		return gateway.Notice{}, fmt.Errorf("%w: it has no payment intent", gateway.ErrFormat)
	}
	if p.Metadata.OutTradeNo == "" {
		return gateway.Notice{Kind: gateway.Other}, nil
	}
	n := p.notice()
	if n.Kind = kind; kind != gateway.Declined {
		n.Code, n.Text = "", ""
	}
	n.Amount = p.amountOf(kind)
	return n, nil
}

// Acknowledge answers by the status alone: Stripe repeats a delivery that gets no 2xx, for 3 days.
func (g *account) Acknowledge(ok bool) gateway.Ack {
	if ok {
		return gateway.Ack{Status: http.StatusNoContent}
	}
	return gateway.Ack{Status: http.StatusServiceUnavailable}
}
