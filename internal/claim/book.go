package claim

import (
	"cmp"
	"context"
	"encoding/json"
	"hash/maphash"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ledgerd/ledgerd/internal/claim/internal/db"
	"github.com/ledgerd/ledgerd/internal/commit"
)

// Book is the claims of one batch. Commands name keys with Want, and use or drop them.
type Book struct {
	claims
	sorted []*Row // all of them
	// unlocked: the batch overlaps others, and has read the claims without locks.
	unlocked bool
	// guessed are those that are taken for new without a look, in the order of sorted.
	guessed []*Row
	memory  *commit.Memory
}

type claims = commit.Rows[Key, Claim]

// Row is a claim in a batch, and the handle of it.
type Row = commit.Row[Key, Claim]

var (
	q    db.Queries
	seed = maphash.MakeSeed()

	_ commit.Guessing = (*Book)(nil)
)

// NewBook makes an empty book.
func NewBook() *Book { return &Book{claims: commit.NewRows[Key, Claim](seed)} }

// NameConstraints are the unique constraints over what callers choose.
func NameConstraints() []string { return []string{"claim_keys_pkey"} }

func compare(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Scope, b.Scope), cmp.Compare(a.Key, b.Key))
}

// Rows has none: claims are names. Batches of this process with a key in common wait for each other.
func (b *Book) Rows(hashes []uint64) []uint64 { return hashes }

// Names hashes the keys.
func (b *Book) Names(hashes []uint64) []uint64 { return b.claims.Rows(hashes) }

// CanOverlap: a command sees nothing but the claims that it names.
func (b *Book) CanOverlap() bool { return true }

// TakeOver has nothing to copy: no two batches at a time have a key in common.
func (b *Book) TakeOver(commit.Table, *commit.Writer) {}

// Lock locks and loads the claims, sorted by tenant, scope and key.
func (b *Book) Lock(p *commit.Pipe) { b.load(p, q.ClaimLock) }

// Guess takes claims that the process does not remember for new, unless it is to be sure.
func (b *Book) Guess(memory *commit.Memory, sure bool) bool {
	b.memory = memory
	b.sorted = b.Sorted(compare)
	if sure {
		return false
	}
	for _, r := range b.sorted {
		if !memory.Has(hash(r.Key)) {
			b.guessed = append(b.guessed, r)
		}
	}
	return len(b.guessed) > 0
}

func hash(k Key) uint64 { return maphash.Comparable(seed, k) }

// Read loads them without locks.
func (b *Book) Read(p *commit.Pipe) {
	b.unlocked = true
	b.load(p, func(ctx context.Context, d db.DBTX, arg db.ClaimLockParams) ([]db.ClaimLockRow, error) {
		rows, err := q.ClaimRead(ctx, d, db.ClaimReadParams(arg))
		same := make([]db.ClaimLockRow, len(rows))
		for i, r := range rows {
			same[i] = db.ClaimLockRow(r)
		}
		return same, err
	})
}

// reading is a statement that loads claims.
type reading func(context.Context, db.DBTX, db.ClaimLockParams) ([]db.ClaimLockRow, error)

func (b *Book) load(p *commit.Pipe, query reading) {
	var rows []*Row
	guessed := b.guessed
	for _, r := range b.sorted {
		if len(guessed) > 0 && guessed[0] == r {
			guessed = guessed[1:]
			continue
		}
		rows = append(rows, r)
	}
	if len(rows) == 0 {
		return
	}
	arg := db.ClaimLockParams{Tenants: make([]int32, len(rows)), Scopes: make([]string, len(rows)), Keys: make([]string, len(rows))}
	for i, r := range rows {
		arg.Tenants[i], arg.Scopes[i], arg.Keys[i] = r.Key.Tenant, r.Key.Scope, r.Key.Key
	}
	p.Queue(func(d commit.DB) error {
		found, err := query(p.Context(), d, arg)
		for i := range found {
			f := &found[i]
			c, err := read(&db.ClaimGetRow{ClaimID: f.ClaimID, Uses: f.Uses, Owner: f.Owner, Result: f.Result, Parts: f.Parts,
				Principal: f.Principal, RequestID: f.RequestID, ClaimedAt: f.ClaimedAt, ExpiresAt: f.ExpiresAt})
			if err != nil {
				return err
			}
			c.tid, c.found = f.Ctid, version{f.ClaimID, f.Uses}
			b.Load(rows[f.N-1], c)
			b.memory.Add(hash(rows[f.N-1].Key))
		}
		return err
	})
}

// read is a row as a claim.
func read(r *db.ClaimGetRow) (c Claim, err error) {
	c = Claim{ID: r.ClaimID, Uses: r.Uses, Principal: r.Principal, RequestID: r.RequestID, ClaimedAt: r.ClaimedAt.UTC()}
	if r.Owner != nil {
		c.Owner = *r.Owner
	}
	if r.Result != nil {
		c.Result = *r.Result
	}
	if r.ExpiresAt != nil {
		c.ExpiresAt = r.ExpiresAt.UTC()
	}
	if r.Parts != nil {
		err = json.Unmarshal(r.Parts, &c.Parts)
	}
	return c, err
}

// partsText is parts as they are stored.
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

// Flush inserts what is new.
func (b *Book) Flush(p *commit.Pipe) {
	if c := b.changes(true); c != nil {
		c.flush(p)
	}
}

// Write writes what others may have, having locked what was only read, in the order in which Lock would have.
func (b *Book) Write(p *commit.Pipe) {
	if c := b.changes(false); c != nil {
		b.confirmFound(p)
		b.unlocked = false
		c.flush(p)
	}
}

// Confirm locks what was only read, and fails unless it is still so, and what was taken for new and not inserted
// is not there.
func (b *Book) Confirm(p *commit.Pipe) {
	b.confirmFound(p)
	var arg db.ClaimAbsentParams
	for _, r := range b.guessed {
		if !r.Exists {
			arg.Tenants, arg.Scopes, arg.Keys = append(arg.Tenants, r.Key.Tenant), append(arg.Scopes, r.Key.Scope), append(arg.Keys, r.Key.Key)
		}
	}
	if len(arg.Keys) > 0 {
		p.Queue(func(d commit.DB) error { return touched(q.ClaimAbsent(p.Context(), d, arg)) })
	}
}

// confirmFound locks the claims that were found, changed or not, if they are not.
func (b *Book) confirmFound(p *commit.Pipe) {
	if !b.unlocked {
		return
	}
	var arg db.ClaimConfirmParams
	for _, r := range b.sorted {
		if r.Found {
			arg.Tenants, arg.Scopes, arg.Keys = append(arg.Tenants, r.Key.Tenant), append(arg.Scopes, r.Key.Scope), append(arg.Keys, r.Key.Key)
			arg.Tids, arg.ClaimIds, arg.Uses = append(arg.Tids, r.Value.tid), append(arg.ClaimIds, r.Value.found.id), append(arg.Uses, r.Value.found.uses)
		}
	}
	if len(arg.Keys) > 0 {
		p.Queue(func(d commit.DB) error { return touched(q.ClaimConfirm(p.Context(), d, arg)) })
	}
}

// changes are what a batch does to the table.
type changes struct {
	drop   []pgtype.TID
	count  db.ClaimCountParams
	renew  db.ClaimRenewParams
	insert db.ClaimInsertParams
}

// changes gathers the changes, or nil: what is new, or what is not.
func (b *Book) changes(fresh bool) (c *changes) {
	for i, r := range b.sorted {
		if r.Found == fresh || r.Value.change == nothing || fresh && !r.Exists {
			continue
		}
		if c == nil {
			c = &changes{}
			c.insert.Now, c.renew.Now = b.Now, b.Now
		}
		if fresh {
			b.memory.Add(hash(r.Key))
		}
		c.add(r, len(b.sorted)-i)
	}
	return c
}

// add adds a row; no more than left will follow.
func (c *changes) add(r *Row, left int) {
	v := &r.Value
	switch {
	case v.change == dropped:
		c.drop = append(c.drop, v.tid)
	case v.change == counted:
		c.count.Tids, c.count.Uses = append(c.count.Tids, v.tid), append(c.count.Uses, v.Uses)
	case r.Found:
		n := &c.renew
		n.Tids, n.ClaimIds, n.Uses = append(n.Tids, v.tid), append(n.ClaimIds, v.ID), append(n.Uses, v.Uses)
		n.Owners, n.Results, n.Parts = append(n.Owners, v.Owner), append(n.Results, v.Result), append(n.Parts, partsText(v.Parts))
		n.Principals, n.RequestIds = append(n.Principals, v.Principal), append(n.RequestIds, v.RequestID)
		n.ExpiresAt = append(n.ExpiresAt, v.ExpiresAt)
	default:
		n := &c.insert
		if n.Tenants == nil {
			grow(left, &n.Tenants)
			grow(left, &n.ClaimIds, &n.Uses)
			grow(left, &n.Scopes, &n.Keys, &n.Owners, &n.Results, &n.Principals, &n.RequestIds)
			grow(left, &n.Parts)
			grow(left, &n.ExpiresAt)
		}
		n.Tenants, n.Scopes, n.Keys = append(n.Tenants, r.Key.Tenant), append(n.Scopes, r.Key.Scope), append(n.Keys, r.Key.Key)
		n.ClaimIds, n.Uses = append(n.ClaimIds, v.ID), append(n.Uses, v.Uses)
		n.Owners, n.Results, n.Parts = append(n.Owners, v.Owner), append(n.Results, v.Result), append(n.Parts, partsText(v.Parts))
		n.Principals, n.RequestIds = append(n.Principals, v.Principal), append(n.RequestIds, v.RequestID)
		n.ExpiresAt = append(n.ExpiresAt, v.ExpiresAt)
	}
}

// grow makes room for n elements in each slice.
func grow[T any](n int, slices ...*[]T) {
	for _, s := range slices {
		*s = make([]T, 0, n)
	}
}

func (c *changes) flush(p *commit.Pipe) {
	if len(c.drop) > 0 {
		p.Queue(func(d commit.DB) error { return touched(q.ClaimDrop(p.Context(), d, c.drop)) })
	}
	if len(c.count.Tids) > 0 {
		p.Queue(func(d commit.DB) error { return touched(q.ClaimCount(p.Context(), d, c.count)) })
	}
	if len(c.renew.Tids) > 0 {
		p.Queue(func(d commit.DB) error { return touched(q.ClaimRenew(p.Context(), d, c.renew)) })
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

// touched is the error of a statement that answers commit_expect.
func touched(_ string, err error) error { return err }

// once spares an array of equal elements its way: the one does the same.
func once[T comparable](s []T) (one T, all []T) {
	for _, v := range s[1:] {
		if v != s[0] {
			return s[0], s
		}
	}
	return s[0], nil
}
