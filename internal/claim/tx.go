package claim

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ledgerd/ledgerd/internal/claim/internal/db"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Tx holds the claims of one batch's transaction. Commands declare keys with Want, and use or drop them.
type Tx struct {
	claims
	sorted    []*Row        // all rows
	rechecked map[*Row]bool // declared with WantRechecked; true: claimed after the batch locked its rows
}

type claims = commit.Rows[Key, Claim]

// Row is a claim in a batch, and a command's handle of it.
type Row = commit.Row[Key, Claim]

var (
	q     db.Queries
	table = commit.NewKeyOrder[Key, Claim](compare)
)

func NewTx() *Tx { return &Tx{claims: table.Rows()} }

// NameConstraints returns the unique constraints on names chosen by callers.
func NameConstraints() []string { return []string{"claim_keys_pkey"} }

func compare(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Scope, b.Scope), cmp.Compare(a.Key, b.Key))
}

// WantRechecked declares a key that is looked up again after all rows of the batch are locked or read. A command that
// reads a claim and other rows needs the second look-up, or it might see only a part of another process's commit.
func (tx *Tx) WantRechecked(k Key) *Row {
	r := tx.Want(k)
	if tx.rechecked == nil {
		tx.rechecked = map[*Row]bool{}
	}
	tx.rechecked[r] = false
	return r
}

// Lookup looks up the keys of WantRechecked a second time.
func (tx *Tx) Lookup(p *commit.Pipe) {
	var rows []*Row
	var arg db.ClaimSeenParams
	for _, r := range tx.Sorted() {
		if _, again := tx.rechecked[r]; again {
			rows = append(rows, r)
			arg.Tenants, arg.Scopes = append(arg.Tenants, r.Key.Tenant), append(arg.Scopes, r.Key.Scope)
			arg.Keys = append(arg.Keys, r.Key.Key)
		}
	}
	if len(rows) == 0 {
		return
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.ClaimSeen(p.Context(), d, arg)
		for _, n := range found {
			tx.rechecked[rows[n-1]] = !rows[n-1].Found // Found is of the first look-up, by Lock
		}
		return err
	})
}

// ClaimedSince reports whether another process claimed a key of WantRechecked after the batch locked its rows. A later
// batch sees the claim.
func (tx *Tx) ClaimedSince(r *Row) bool { return tx.rechecked[r] }

// Live reports whether a key is claimed. An expired claim counts as absent, even if its row exists.
func (tx *Tx) Live(r *Row) bool {
	return r.Exists && (r.Value.ForEver() || r.Value.ExpiresAt.After(tx.Now))
}

// CanOverlap is true because commands see only the claims that they declare. The unique constraint detects
// claims that another process inserts concurrently; the batch then runs again.
func (tx *Tx) CanOverlap() bool { return true }

// Lock locks and loads the claims.
func (tx *Tx) Lock(p *commit.Pipe) {
	rows := tx.Sorted()
	if tx.sorted = rows; len(rows) == 0 {
		return
	}
	arg := db.ClaimLockParams{Tenants: make([]int32, len(rows)), Scopes: make([]string, len(rows)),
		Keys: make([]string, len(rows))}
	for i, r := range rows {
		arg.Tenants[i], arg.Scopes[i], arg.Keys[i] = r.Key.Tenant, r.Key.Scope, r.Key.Key
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.ClaimLock(p.Context(), d, arg)
		for i := range found {
			f := &found[i]
			c, err := read(&db.ClaimGetRow{ClaimID: f.ClaimID, Uses: f.Uses, Owner: f.Owner, Result: f.Result,
				Parts:     f.Parts,
				Principal: f.Principal, RequestID: f.RequestID, ClaimedAt: f.ClaimedAt, ExpiresAt: f.ExpiresAt})
			if err != nil {
				return err
			}
			c.tid = f.Ctid
			tx.Load(rows[f.N-1], c)
		}
		return err
	})
}

// read converts a row to a claim.
func read(r *db.ClaimGetRow) (c Claim, err error) {
	c = Claim{ID: r.ClaimID, Uses: r.Uses, Owner: pg.OrZero(r.Owner), Result: pg.OrZero(r.Result),
		Principal: r.Principal, RequestID: r.RequestID, ClaimedAt: r.ClaimedAt, ExpiresAt: pg.OrZero(r.ExpiresAt)}
	if r.Parts != nil {
		err = json.Unmarshal(r.Parts, &c.Parts)
	}
	return c, err
}

// partsText is the stored form of parts.
func partsText(parts []string) []byte {
	if parts == nil {
		return nil
	}
	text, err := json.Marshal(parts)
	if err != nil {
		panic(err) // strings always encode
	}
	return text
}

func (tx *Tx) Flush(p *commit.Pipe) {
	c := changes{}
	c.insert.Now, c.renew.Now = tx.Now, tx.Now
	pg.Reserve(&c.insert, len(tx.sorted))
	for _, r := range tx.sorted {
		if r.Value.change != nothing && (r.Found || r.Exists) {
			c.add(r)
		}
	}
	c.flush(p)
}

// changes are the batch's statement arguments for the table.
type changes struct {
	drop   []pgtype.TID
	count  db.ClaimCountParams
	renew  db.ClaimRenewParams
	insert db.ClaimInsertParams
}

// add adds a row.
func (c *changes) add(r *Row) {
	v := &r.Value
	switch {
	case v.change == dropped:
		c.drop = append(c.drop, v.tid)
	case v.change == counted:
		c.count.Tids, c.count.Uses = append(c.count.Tids, v.tid), append(c.count.Uses, v.Uses)
	case r.Found:
		n := &c.renew
		n.Tids, n.ClaimIds, n.Uses = append(n.Tids, v.tid), append(n.ClaimIds, v.ID), append(n.Uses, v.Uses)
		n.Owners, n.Results, n.Parts = append(n.Owners, v.Owner), append(n.Results, v.Result),
			append(n.Parts, partsText(v.Parts))
		n.Principals, n.RequestIds = append(n.Principals, v.Principal), append(n.RequestIds, v.RequestID)
		n.ExpiresAt = append(n.ExpiresAt, v.ExpiresAt)
	default:
		n := &c.insert
		n.Tenants, n.Scopes, n.Keys = append(n.Tenants, r.Key.Tenant), append(n.Scopes, r.Key.Scope),
			append(n.Keys, r.Key.Key)
		n.ClaimIds, n.Uses = append(n.ClaimIds, v.ID), append(n.Uses, v.Uses)
		n.Owners, n.Results, n.Parts = append(n.Owners, v.Owner), append(n.Results, v.Result),
			append(n.Parts, partsText(v.Parts))
		n.Principals, n.RequestIds = append(n.Principals, v.Principal), append(n.RequestIds, v.RequestID)
		n.ExpiresAt = append(n.ExpiresAt, v.ExpiresAt)
	}
}

func (c *changes) flush(p *commit.Pipe) {
	if len(c.drop) > 0 {
		p.Queue(func(d commit.DB) error { return q.ClaimDrop(p.Context(), d, c.drop) })
	}
	if len(c.count.Tids) > 0 {
		p.Queue(func(d commit.DB) error { return q.ClaimCount(p.Context(), d, c.count) })
	}
	if len(c.renew.Tids) > 0 {
		p.Queue(func(d commit.DB) error { return q.ClaimRenew(p.Context(), d, c.renew) })
	}
	if n := &c.insert; len(n.Keys) > 0 {
		n.Tenant, n.Tenants = once(n.Tenants)
		n.Scope, n.Scopes = once(n.Scopes)
		n.Use, n.Uses = once(n.Uses)
		n.Owner, n.Owners = once(n.Owners)
		n.Result, n.Results = once(n.Results)
		n.Principal, n.Principals = once(n.Principals)
		n.Expiry, n.ExpiresAt = once(n.ExpiresAt)
		if !slices.ContainsFunc(n.Parts, func(p []byte) bool { return p != nil }) {
			n.Parts = nil
		}
		p.Queue(func(d commit.DB) error { return q.ClaimInsert(p.Context(), d, c.insert) })
	}
}

// once sends an array of equal elements as a single value.
func once[T comparable](s []T) (one T, all []T) {
	for _, v := range s[1:] {
		if v != s[0] {
			return s[0], s
		}
	}
	return s[0], nil
}
