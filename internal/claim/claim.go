package claim

import (
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ledgerd/ledgerd/internal/commit"
)

// Key names a claim.
type Key struct {
	Tenant     int32
	Scope, Key string
}

// Claim is a claimed key, as its first use made it.
type Claim struct {
	ID        int64 // its fence: another one when the key was free in between
	Uses      int64
	Owner     string   // empty: nobody's
	Result    string   // name of what the first use made; may be empty
	Parts     []string // of a business key. Never written through
	Principal string
	RequestID string
	ClaimedAt time.Time
	ExpiresAt time.Time // zero: for ever

	tid    pgtype.TID // where the row is, if there is one
	change change
}

// change is what a batch does to a claim's row.
type change uint8

const (
	nothing change = iota
	counted
	claimed // whether there was a row, whose life was over, or none
	dropped
)

// ForEver tells a claim without a life.
func (c *Claim) ForEver() bool { return c.ExpiresAt.IsZero() }

// Params is one use of a key.
type Params struct {
	Scope string
	Key   string   // of a business key: Compose(Parts)
	Parts []string // nil: a plain key
	Owner string
	// Life is measured from the first use, which alone decides it. 0: for ever.
	Life time.Duration
	// FirstOnly refuses every use but the first.
	FirstOnly bool
	Result    string
}

// At is the key that the use is of.
func (p *Params) At(tenant int32) Key { return Key{tenant, p.Scope, p.Key} }

// Use is how a use of a key ended.
type Use struct {
	// Count is which use it is. Of a key without a life it is 1: what its owner does again is the same use.
	Count int64
	// Existed: it was not the first.
	Existed bool
	First   Claim
}

// Lives of scopes that have one of their own.
const (
	PageScope     = "page"
	PageLife      = 10 * time.Minute
	PurchaseScope = "purchase"
)

// DefaultLife is the life of a scope's keys when the call says nothing. 0: for ever.
func DefaultLife(scope string) time.Duration {
	switch scope {
	case PageScope:
		return PageLife
	case PurchaseScope:
		return SamePurchase.Window
	}
	return 0
}

// Compose makes one key of parts: each behind its length in bytes and a colon, before a comma. No two lists of
// parts give the same key.
func Compose(parts []string) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(strconv.Itoa(len(p)))
		b.WriteByte(':')
		b.WriteString(p)
		b.WriteByte(',')
	}
	return b.String()
}

// Use uses a key that Want named; Name names what a first use made, once it is made. On a fault it leaves the claim as
// it is: KEY_CLAIMED when only a first use will do, or the key is another owner's for ever; CLAIM_LIFE_DIFFERENT when
// it is claimed for ever and the use has a life, or the reverse.
func (tx *Tx) Use(r *Row, c commit.Caller, p *Params) (Use, error) {
	if tx.live(r) {
		first := &r.Value
		switch {
		case first.ForEver() != (p.Life == 0):
			return Use{}, lifeDifferent(r)
		case p.FirstOnly, first.ForEver() && first.Owner != p.Owner:
			return Use{}, alreadyClaimed(r)
		case first.ForEver():
			return Use{1, true, *first}, nil
		}
		v := tx.Change(r)
		v.Uses++
		if v.change == nothing {
			v.change = counted
		}
		return Use{v.Uses, true, *v}, nil
	}
	v := tx.Change(r)
	*v = Claim{ID: tx.ID(), Uses: 1, Owner: p.Owner, Parts: p.Parts, Principal: c.Principal,
		RequestID: c.RequestID, ClaimedAt: tx.Now, tid: v.tid, change: claimed}
	if p.Life > 0 {
		v.ExpiresAt = tx.Now.Add(p.Life)
	}
	return Use{1, false, *v}, nil
}

// live tells whether the key is taken: one past its life counts as gone.
func (tx *Tx) live(r *Row) bool {
	return r.Exists && (r.Value.ForEver() || r.Value.ExpiresAt.After(tx.Now))
}

// Name gives a claim that this batch made the name of what its first use made.
func (tx *Tx) Name(r *Row, result string) {
	if r.Exists && r.Value.change == claimed && len(result) <= maxResult {
		tx.Change(r).Result = result
	}
}

// maxResult is what the table takes.
const maxResult = 512

// DropParams says whose claim is to go: that of a fence, or of an owner.
type DropParams struct {
	Scope, Key string
	Fence      int64  // 0: whichever claim of Owner's it is
	Owner      string // empty: not asked for
}

// At is the key that is to be freed.
func (p *DropParams) At(tenant int32) Key { return Key{tenant, p.Scope, p.Key} }

// Drop frees a key that Want named. It tells false when there is nothing to free: the key is not claimed, or no
// longer by the claim of the fence. Returns the fault CLAIM_FOREIGN when the claim is another owner's.
func (tx *Tx) Drop(r *Row, p *DropParams) (bool, error) {
	switch {
	case !tx.live(r), p.Fence != 0 && p.Fence != r.Value.ID:
		return false, nil
	case p.Owner != "" && p.Owner != r.Value.Owner, p.Owner == "" && p.Fence == 0:
		return false, foreign(r)
	}
	tx.Change(r).change = dropped
	r.Exists = false
	return true, nil
}
