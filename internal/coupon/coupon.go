package coupon

import (
	"crypto/rand"
	"time"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// MaxLife is the longest life of a coupon.
const MaxLife = 10 * 365 * 24 * time.Hour

// LongestLife returns the expiry time of a coupon that was issued without one.
func LongestLife(created time.Time) time.Time { return created.Add(MaxLife).Truncate(time.Microsecond) }

// Key identifies a coupon.
type Key struct {
	Tenant int32
	Code   string
}

// Coupon is a coupon as it was issued.
type Coupon struct {
	Key
	ID        int64 // that of its instance too
	Campaign  string
	ExpiresAt time.Time
	Metadata  map[string]string
	Principal string
	RequestID string
	CreatedAt time.Time
}

// State is the state of a coupon: what its instance says.
type State struct {
	State     string
	Owner     string // empty: it is not claimed yet
	Cause     string
	ChangedAt time.Time
}

// View is a coupon with its state.
type View struct {
	Coupon
	State
}

// alphabet is Crockford's base 32: digits and letters that are not easily confused.
const alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// NewCode makes a code of 20 characters: 100 random bits, so that it cannot be guessed.
func NewCode() string {
	b := make([]byte, 20)
	rand.Read(b)
	for i := range b {
		b[i] = alphabet[b[i]&31]
	}
	return string(b)
}

// Reasons of coupons.
var (
	NotFound = fault.Register(fault.Reason{Name: "COUPON_NOT_FOUND", Class: fault.BadRequest, Code: fault.NotFound,
		Step: fault.Fix, Show: true,
		Doc: "There is no coupon with this code."})
	ExistsDifferent = fault.Register(fault.Reason{Name: "COUPON_EXISTS_DIFFERENT", Class: fault.BadRequest,
		Code: fault.AlreadyExists, Step: fault.Fix,
		Doc: "A code exists with another campaign, expire_time or metadata, or only some of the codes of the call " +
			"exist. The metadata has it, and the fields that differ. Nothing was issued."})
	Taken = fault.Register(fault.Reason{Name: "COUPON_TAKEN", Class: fault.Refusal, Code: fault.FailedPrecondition,
		Step: fault.NewKey, Show: true,
		Doc: "The coupon has another owner."})
	Owned = fault.Register(fault.Reason{Name: "COUPON_OWNED", Class: fault.Refusal, Code: fault.FailedPrecondition,
		Step: fault.NewKey, Show: true,
		Doc: "The owner has another coupon of the campaign already: the metadata has its code."})
	Unclaimed = fault.Register(fault.Reason{Name: "COUPON_UNCLAIMED", Class: fault.Refusal,
		Code: fault.FailedPrecondition, Step: fault.NewKey, Show: true,
		Doc: "The coupon has to be claimed before it can be used."})
	Expired = fault.Register(fault.Reason{Name: "COUPON_EXPIRED", Class: fault.Refusal, Code: fault.FailedPrecondition,
		Step: fault.NewKey, Show: true,
		Doc: "The life of the coupon is over: the metadata has its end."})
)

// IsTaken is the fault for a coupon of another owner. It does not name that owner, whom the caller need not know.
func (c *Coupon) IsTaken() error {
	return Taken.New("coupon %s has another owner", c.Code).With("code", c.Code)
}

// IsOwned is the fault for an owner who has another coupon of the campaign.
func (c *Coupon) IsOwned(owner, first string) error {
	return Owned.New("%s has coupon %s of campaign %s already", owner, first, c.Campaign).With("code", first).
		With("campaign", c.Campaign)
}

// IsUnclaimed is the fault for a coupon without an owner.
func (c *Coupon) IsUnclaimed() error {
	return Unclaimed.New("coupon %s is not claimed", c.Code).With("code", c.Code)
}

// HasExpired is the fault for a coupon whose life is over.
func (c *Coupon) HasExpired() error {
	return Expired.New("coupon %s expired at %s", c.Code, c.ExpiresAt.Format(time.RFC3339)).With("code", c.Code).
		With("expire_time", c.ExpiresAt.Format(time.RFC3339Nano))
}

// IsIssued is the fault for a code that was issued before, in a call with codes that were not.
func (k Key) IsIssued(id int64) *fault.Fault {
	return ExistsDifferent.New("coupon %s was issued before, and other codes of the request were not: "+
		"remove it from codes, or repeat the first request unchanged", k.Code).
		With("code", k.Code).With("first_id", id).With("differs", "codes")
}

func notFound(k Key) error {
	return NotFound.New("there is no coupon %s", k.Code).With("code", k.Code).
		WithField("code", "must be the code of a coupon that exists")
}
