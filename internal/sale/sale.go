package sale

import (
	"maps"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// Key identifies a sale.
type Key struct {
	Tenant int32
	Sale   string
}

// Sale is a sale. It gives an order or a coupon, not both.
type Sale struct {
	Item     string
	Order    *Order
	Coupon   *Coupon
	PerBuyer int32
	Once     bool // a buyer whose order was cancelled cannot grab again
	OpensAt  time.Time
	ClosesAt time.Time // zero: never

	caller commit.Caller // of the last change, in the batch that makes it
}

// Order describes the orders that a sale gives.
type Order struct {
	Asset     string
	Amount    string // canonical decimal
	Payee     string
	PayWithin time.Duration // 0: as the machine says
	Machine   string
}

// Coupon describes the coupons that a sale gives.
type Coupon struct {
	Campaign string
	Life     time.Duration // 0: the longest
	Metadata map[string]string
}

// Named is a sale with its name.
type Named struct {
	Key
	Sale
}

// Outcome is the result of a grab.
type Outcome uint8

const (
	Won Outcome = iota + 1
	Already
	SoldOut
	NotOpen
	Over
)

// Opening returns NotOpen or Over, or 0 while the sale is open.
func (s *Sale) Opening(now time.Time) Outcome {
	switch {
	case s.OpensAt.After(now):
		return NotOpen
	case !s.ClosesAt.IsZero() && !s.ClosesAt.After(now):
		return Over
	}
	return 0
}

// Equal reports whether two sales have the same content.
func (s *Sale) Equal(t *Sale) bool {
	if (s.Order == nil) != (t.Order == nil) || s.Order != nil && *s.Order != *t.Order {
		return false
	}
	if (s.Coupon == nil) != (t.Coupon == nil) || s.Coupon != nil && (s.Coupon.Campaign != t.Coupon.Campaign ||
		s.Coupon.Life != t.Coupon.Life || !maps.Equal(s.Coupon.Metadata, t.Coupon.Metadata)) {
		return false
	}
	return s.Item == t.Item && s.PerBuyer == t.PerBuyer && s.Once == t.Once && s.OpensAt.Equal(t.OpensAt) &&
		s.ClosesAt.Equal(t.ClosesAt)
}

// Settings are the settings of a sale in the audit log.
type Settings struct {
	Item     string            `json:"item"`
	Asset    string            `json:"asset,omitempty"`
	Amount   string            `json:"amount,omitempty"`
	Payee    string            `json:"payee,omitempty"`
	Within   string            `json:"pay_within,omitempty"`
	Machine  string            `json:"machine,omitempty"`
	Campaign string            `json:"campaign,omitempty"`
	Life     string            `json:"coupon_life,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	PerBuyer int32             `json:"per_buyer"`
	Once     bool              `json:"once"`
	OpensAt  *time.Time        `json:"open_time,omitempty"`
	ClosesAt *time.Time        `json:"close_time,omitempty"`
}

// Settings returns the settings of the sale.
func (s *Sale) Settings() Settings {
	x := Settings{Item: s.Item, PerBuyer: s.PerBuyer, Once: s.Once}
	if o := s.Order; o != nil {
		x.Asset, x.Amount, x.Payee, x.Machine, x.Within = o.Asset, o.Amount, o.Payee, o.Machine, lengthOf(o.PayWithin)
	}
	if c := s.Coupon; c != nil {
		x.Campaign, x.Life, x.Metadata = c.Campaign, lengthOf(c.Life), c.Metadata
	}
	if !s.OpensAt.IsZero() {
		x.OpensAt = &s.OpensAt
	}
	if !s.ClosesAt.IsZero() {
		x.ClosesAt = &s.ClosesAt
	}
	return x
}

// lengthOf writes a length of time; 0, the default, is empty.
func lengthOf(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

// NotFound is the reason for a sale that does not exist.
var NotFound = fault.Register(fault.Reason{Name: "SALE_NOT_FOUND", Class: fault.BadRequest, Code: fault.NotFound,
	Step: fault.Fix,
	Doc:  "There is no such sale: create it with PutSale."})

func notFound(k Key) error {
	return NotFound.New("there is no sale %s", k.Sale).With("sale", k.Sale).
		WithField("sale", "must be a sale that exists")
}
