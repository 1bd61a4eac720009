package book

import (
	"encoding/json"
	"net/http"
	"time"
)

// Notice is a callback that the gateway owes.
type Notice struct {
	ID      string `json:"id"`
	Gateway string `json:"gateway"`
	Payment string `json:"payment"` // its key
	Number  string `json:"number"`
	Type    string `json:"type"` // the vendor's word
	URL     string `json:"url"`  // empty: the gateway's only address, see Book.SetCallbacks

	Content json.RawMessage `json:"content"` // the dialect's; signed anew for each attempt

	MadeAt   time.Time `json:"made_at"`
	Due      time.Time `json:"due"`
	Held     bool      `json:"held,omitempty"`
	Behind   string    `json:"behind,omitempty"` // sent after the first attempt of this notice
	Copies   int       `json:"copies,omitempty"` // sent at the same moment as the first attempt
	Repeats  int       `json:"repeats,omitempty"`
	Forge    []Forgery `json:"forge,omitempty"` // sent before the first attempt
	Attempts []Attempt `json:"attempts,omitempty"`

	AcknowledgedAt time.Time `json:"acknowledged_at,omitzero"`
	GaveUp         bool      `json:"gave_up,omitempty"`
	Never          bool      `json:"never,omitempty"` // lost by plan

	begun bool // its sender runs
}

// Attempt is one request with a notice, and what came back.
type Attempt struct {
	At           time.Time `json:"at"`
	Forgery      Forgery   `json:"forgery,omitempty"`
	Status       int       `json:"status,omitempty"` // 0: no answer
	Answer       string    `json:"answer,omitempty"`
	Acknowledged bool      `json:"acknowledged"`
}

func (n *Notice) done() bool {
	return n.Never || n.GaveUp || (!n.AcknowledgedAt.IsZero() && n.Repeats == 0)
}

func (n *Notice) clone() *Notice {
	c := *n
	c.Attempts = append([]Attempt(nil), n.Attempts...)
	return &c
}

// Kind is what an event is about.
type Kind string

const (
	EventPaid       Kind = "paid"
	EventProcessing Kind = "processing"
	EventDeclined   Kind = "declined"
	EventClosed     Kind = "closed"
	EventFinished   Kind = "finished" // refunds are not possible any more
	EventRefund     Kind = "refund"   // a refund has a new status
)

// Event is something of which a dialect may send notices.
type Event struct {
	Kind        Kind
	Payment     *Payment
	Transaction *Transaction
	Refund      *Refund
	GivenBack   int64 // of Transaction, with this refund
	At          time.Time
}

// Content is a notice in a dialect.
type Content struct {
	ID, Type, URL string
	Body          any // becomes JSON
}

// Forgery says how a request or an answer is to be signed wrongly.
type Forgery string

const (
	Honest   Forgery = ""
	Key      Forgery = "key"      // by a foreign key
	None     Forgery = "none"     // not at all
	Tampered Forgery = "tampered" // content changed afterwards
	Old      Forgery = "old"      // ten minutes ago: a replay
	Future   Forgery = "future"   // in ten minutes
	Probe    Forgery = "probe"    // as the vendor tests whether signatures are checked
	Serial   Forgery = "serial"   // names a key that is not known
)

// Forgeries are all ways.
var Forgeries = []Forgery{Key, None, Tampered, Old, Future, Probe, Serial}

// Dialect is a vendor's protocol as far as notices go.
type Dialect interface {
	// Name is the gateway's name.
	Name() string
	// TransactionID makes the number of money that came for p.
	TransactionID(p *Payment) string
	// Compose writes the notices of an event; none if the vendor sends none.
	Compose(e *Event) []Content
	// Request signs a notice for url. It returns nil if the vendor has nothing that f could forge.
	Request(n *Notice, url string, now time.Time, f Forgery) *http.Request
	// Acknowledged reads the merchant's answer.
	Acknowledged(status int, body []byte) bool
	// Schedule has the waits between attempts.
	Schedule() []time.Duration
	// Patience is how long the vendor waits for an answer.
	Patience() time.Duration
}
