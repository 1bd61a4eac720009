package claim

import (
	"crypto/sha256"
	"encoding/hex"
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

// Claim is a claimed key, as created by its first use.
type Claim struct {
	ID        int64 // the fence: a later claim of the key has another one
	Uses      int64
	Owner     string   // empty: no owner
	Result    string   // name of the first use's result; may be empty
	Parts     []string // parts of a business key; read-only
	Principal string
	RequestID string
	ClaimedAt time.Time
	ExpiresAt time.Time // zero: never

	tid    pgtype.TID // location of the row, if there is one
	change change
}

// change is the pending change of a claim's row.
type change uint8

const (
	nothing change = iota
	counted
	claimed // insert, or update of an expired row
	dropped
)

// ForEver reports whether the claim never expires.
func (c *Claim) ForEver() bool { return c.ExpiresAt.IsZero() }

// Params describe one use of a key.
type Params struct {
	Scope string
	Key   string   // for a business key: Compose(Parts)
	Parts []string // nil: a plain key
	Owner string
	// Life is set by the first use and counts from it. 0: forever.
	Life time.Duration
	// FirstOnly refuses all uses but the first.
	FirstOnly bool
	Result    string
}

// At is the full key within a tenant.
func (p *Params) At(tenant int32) Key { return Key{tenant, p.Scope, p.Key} }

// Use is the outcome of using a key.
type Use struct {
	// Count is the ordinal of the use. A key without a life has only use 1, which its owner may repeat.
	Count int64
	// Existed reports that this was not the first use.
	Existed bool
	First   Claim
}

// Lives of predefined scopes.
const (
	PageScope     = "page"
	PageLife      = 10 * time.Minute
	PurchaseScope = "purchase"
	// Callers cannot claim or drop in the scopes of orders, sales and campaigns.
	OrderScope    = "order.purchase"
	SaleScope     = "sale.unit"
	CampaignScope = "coupon.campaign"
)

// DefaultLife is the default life of a scope's keys. 0: forever.
func DefaultLife(scope string) time.Duration {
	switch scope {
	case PageScope:
		return PageLife
	case PurchaseScope:
		return SamePurchase.Life
	}
	return 0
}

// maxKey is the largest size of a key, in bytes.
const maxKey = 1024

// Compose joins parts into one key, each prefixed by its length in bytes and a colon, separated by commas. A key that
// would be longer than maxKey is its SHA-256 instead. Different lists give different keys.
func Compose(parts []string) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(strconv.Itoa(len(p)))
		b.WriteByte(':')
		b.WriteString(p)
		b.WriteByte(',')
	}
	if b.Len() <= maxKey {
		return b.String()
	}
	sum := sha256.Sum256([]byte(b.String()))
	return "sha256:" + hex.EncodeToString(sum[:]) // no composed key begins like this
}

// Use uses a key declared with Want; Name sets the result of a first use. Faults leave the claim unchanged:
// KEY_CLAIMED if the use has FirstOnly, or another owner has claimed the key forever; CLAIM_LIFE_DIFFERENT if
// the claim has a life and the use has none, or the reverse.
func (tx *Tx) Use(r *Row, c commit.Caller, p *Params) (Use, error) {
	if tx.Live(r) {
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

// Name sets the result of a claim that this batch created.
func (tx *Tx) Name(r *Row, result string) {
	if r.Exists && r.Value.change == claimed && len(result) <= maxResult {
		tx.Change(r).Result = result
	}
}

// maxResult is the column's limit.
const maxResult = 512

// DropParams select the claim to delete by fence or owner.
type DropParams struct {
	Scope, Key string
	Fence      int64  // 0: any claim of Owner
	Owner      string // empty: not compared
}

// At is the full key within a tenant.
func (p *DropParams) At(tenant int32) Key { return Key{tenant, p.Scope, p.Key} }

// Drop deletes the claim of a key declared with Want. It returns false if there is nothing to delete: the key
// is not claimed, or its claim has another fence. Returns fault CLAIM_FOREIGN if the claim belongs to another
// owner.
func (tx *Tx) Drop(r *Row, p *DropParams) (bool, error) {
	switch {
	case !tx.Live(r), p.Fence != 0 && p.Fence != r.Value.ID:
		return false, nil
	case p.Owner != "" && p.Owner != r.Value.Owner, p.Owner == "" && p.Fence == 0:
		return false, foreign(r)
	}
	tx.Change(r).change = dropped
	r.Exists = false
	return true, nil
}
