package coupon

import (
	"cmp"
	"maps"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/coupon/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Tx holds the coupons of one batch's transaction. Commands name coupons with Want, read them, and Issue new ones.
type Tx struct{ coupons }

type coupons = commit.Rows[Key, Coupon]

// Row is a coupon in a batch, and a command's handle of it.
type Row = commit.Row[Key, Coupon]

var (
	q     db.Queries
	table = commit.NewKeyOrder[Key, Coupon](compare)
)

var _ commit.Participant = (*Tx)(nil)

// NewTx returns an empty transaction.
func NewTx() *Tx { return &Tx{coupons: table.Rows()} }

// NameConstraints returns the unique constraints on names that callers choose.
func NameConstraints() []string { return []string{"coupon_coupons_pkey"} }

func compare(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Code, b.Code))
}

// CanOverlap is true because commands see only the coupons that they name, which never change. The unique constraint
// detects a coupon that another process inserts.
func (tx *Tx) CanOverlap() bool { return true }

// Lock locks nothing.
func (tx *Tx) Lock(*commit.Pipe) {}

// Lookup reads the named coupons.
func (tx *Tx) Lookup(p *commit.Pipe) {
	rows := tx.Sorted()
	if len(rows) == 0 {
		return
	}
	var arg db.CouponLookupParams
	for _, r := range rows {
		arg.Tenants, arg.Codes = append(arg.Tenants, r.Key.Tenant), append(arg.Codes, r.Key.Code)
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.CouponLookup(p.Context(), d, arg)
		for i := range found {
			f := &found[i]
			r := rows[f.N-1]
			c := Coupon{Key: r.Key, ID: f.CouponID, Campaign: f.Campaign, ExpiresAt: f.ExpiresAt,
				Metadata: pg.Metadata(f.Metadata), Principal: f.Principal, RequestID: f.RequestID,
				CreatedAt: f.CreatedAt}
			tx.Load(r, c)
		}
		return err
	})
}

// Issue makes a coupon, in a row that does not exist.
func (tx *Tx) Issue(r *Row, c Coupon) *Coupon {
	c.Key, c.CreatedAt = r.Key, tx.Now
	*tx.Change(r) = c
	return &r.Value
}

// CheckSame checks that a coupon was issued like this. A zero expiresAt is the longest life. Returns fault
// COUPON_EXISTS_DIFFERENT.
func (c *Coupon) CheckSame(campaign string, expiresAt time.Time, metadata map[string]string) error {
	var differs []string
	if c.Campaign != campaign {
		differs = append(differs, "campaign")
	}
	if expiresAt.IsZero() {
		expiresAt = LongestLife(c.CreatedAt)
	}
	if !c.ExpiresAt.Equal(expiresAt) {
		differs = append(differs, "expire_time")
	}
	if !maps.Equal(c.Metadata, metadata) {
		differs = append(differs, "metadata")
	}
	if len(differs) == 0 {
		return nil
	}
	return ExistsDifferent.New("coupon %s is already issued", c.Code).Differing(differs, "code").
		With("code", c.Code).With("first_id", c.ID)
}

// Flush inserts the new coupons.
func (tx *Tx) Flush(p *commit.Pipe) {
	rows := tx.Fresh()
	if len(rows) == 0 {
		return
	}
	arg := db.CouponInsertParams{Now: tx.Now}
	for _, r := range rows {
		c := &r.Value
		arg.Tenants, arg.Codes = append(arg.Tenants, r.Key.Tenant), append(arg.Codes, r.Key.Code)
		arg.CouponIds, arg.Campaigns = append(arg.CouponIds, c.ID), append(arg.Campaigns, c.Campaign)
		arg.ExpiresAt, arg.Metadata = append(arg.ExpiresAt, c.ExpiresAt), append(arg.Metadata, pg.JSON(c.Metadata))
		arg.Principals, arg.RequestIds = append(arg.Principals, c.Principal), append(arg.RequestIds, c.RequestID)
	}
	p.Queue(func(d commit.DB) error { return q.CouponInsert(p.Context(), d, arg) })
}

// MustExist returns the coupon of a row. Returns fault COUPON_NOT_FOUND.
func MustExist(r *Row) (*Coupon, error) {
	if !r.Exists {
		return nil, notFound(r.Key)
	}
	return &r.Value, nil
}
