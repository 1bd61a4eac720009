package book

import (
	"encoding/json"
	"net/http"
	"time"
)

// Notice is a callback that the gateway sends until it is acknowledged or given up.
type Notice struct {
	ID      string `json:"id"`
	Gateway string `json:"gateway"`
	Payment string `json:"payment"` // its key
	Number  string `json:"number"`
	Type    string `json:"type"` // the vendor's name of the type
	URL     string `json:"url"`  // empty: the URL of Book.SetCallbacks

	Content json.RawMessage `json:"content"` // in the dialect; signed at each attempt

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

	begun bool // its sender has been started
}

// Attempt is one request with a notice, and its answer.
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

// Kind is the kind of an event.
type Kind string

const (
	EventPaid       Kind = "paid"
	EventProcessing Kind = "processing"
	EventDeclined   Kind = "declined"
	EventClosed     Kind = "closed"
	EventFinished   Kind = "finished" // refunds are not possible any more
	EventRefund     Kind = "refund"   // a refund has a new status
)

// Event is a change of a payment or refund, for which a dialect may send notices.
type Event struct {
	Kind        Kind
	Payment     *Payment
	Transaction *Transaction
	Refund      *Refund
	GivenBack   int64 // sum of the succeeded refunds of Transaction
	At          time.Time
}

// Content is a notice in a dialect.
type Content struct {
	ID, Type, URL string
	Body          any // becomes JSON
}

// Forgery is the way in which a request or an answer is signed wrongly.
type Forgery string

const (
	Honest   Forgery = ""
	Key      Forgery = "key"      // signed by a foreign key
	None     Forgery = "none"     // not signed
	Tampered Forgery = "tampered" // content changed after signing
	Old      Forgery = "old"      // signed ten minutes ago: a replay
	Future   Forgery = "future"   // signed for ten minutes from now
	Probe    Forgery = "probe"    // a test signature, by which the vendor probes whether merchants verify
	Serial   Forgery = "serial"   // names an unknown key
)

// Forgeries lists all forgeries.
var Forgeries = []Forgery{Key, None, Tampered, Old, Future, Probe, Serial}

// Dialect is the part of a vendor's protocol that concerns notices.
type Dialect interface {
	// Name is the gateway's name.
	Name() string
	// TransactionID returns the id of a new transaction of p.
	TransactionID(p *Payment) string
	// Compose returns the notices that the vendor sends for an event.
	Compose(e *Event) []Content
	// Request signs a notice for url. It returns nil if notices of the vendor cannot be forged by f.
	Request(n *Notice, url string, now time.Time, f Forgery) *http.Request
	// Acknowledged reports whether the merchant's answer acknowledges the notice.
	Acknowledged(status int, body []byte) bool
	// Schedule returns the waits between attempts.
	Schedule() []time.Duration
	// Patience is how long the vendor waits for an answer.
	Patience() time.Duration
}
