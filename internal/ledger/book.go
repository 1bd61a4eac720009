package ledger

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/ledger/internal/db"
)

// Book is the ledger's rows within one batch. Commands name what they need and get handles, which
// the load fills in; verbs work on the handles. Not safe for several goroutines.
type Book struct {
	at    commit.Times
	newID func() int64

	accounts  map[AccountKey]*Account
	locks     []*Account // all of accounts, in the order in which they are locked
	assets    map[assetKey]*Asset
	assetList []*Asset
	details   map[*Account]bool // wanted with metadata

	transferNames map[nameKey]*transferName
	nameList      []*transferName // all of transferNames, as they came
	transferRefs  map[idKey]*transferRef
	holdNames     map[nameKey]*holdName
	holdRefs      map[idKey]*holdRef
	holds         map[idKey]*Hold // every hold in memory

	made       []madeTransfer
	newHolds   []madeHold
	newDetails []*Account // metadata changed, row there
	newAssets  []*Asset

	resolved bool
	mark     mark
	gen      uint64

	accountSlab slab[Account]
	nameSlab    slab[transferName]
}

// slab makes zero values many at a time: a batch has thousands of accounts and names.
type slab[T any] struct{ unused []T }

func (s *slab[T]) new() *T {
	if len(s.unused) == 0 {
		s.unused = make([]T, 64)
	}
	t := &s.unused[0]
	s.unused = s.unused[1:]
	return t
}

type assetKey struct {
	tenant int32
	code   string
}

type nameKey struct {
	tenant int32
	bizNo  string
}

type idKey struct {
	tenant int32
	id     int64
}

// transferName is the handle of a transfer's biz_no; t is set when it is taken.
type transferName struct {
	nameKey
	t       *Transfer
	reverse bool  // to be reversed: its accounts are wanted too
	most    int32 // postings that are wanted of it
	all     bool  // they all are
}

// transferRef is the handle of a transfer by id.
type transferRef struct {
	idKey
	t    *Transfer
	late bool // named while commands ran: what the batch did not make was not looked for
}

// holdName is the handle of a hold's biz_no; h is set when it is taken.
type holdName struct {
	nameKey
	h *Hold
	holdWants
}

// holdWants is what commands want to be discovered of a hold.
type holdWants struct {
	account bool     // the account that is held; else the name alone
	to      []string // destinations of captures; "": the hold's own
}

// holdRef is the handle of a hold by id.
type holdRef struct {
	idKey
	h    *Hold
	late bool // as of transferRef
	holdWants
}

type madeTransfer struct {
	*Transfer
	name     *transferName
	reversed *Transfer
}

type madeHold struct {
	*Hold
	name *holdName
}

// mark is where Undo goes back to.
type mark struct {
	made, holds, details, assets int
	accountSaves                 []accountSave
	holdSaves                    []holdSave
}

type accountSave struct {
	a   *Account
	old Account
}

type holdSave struct {
	h   *Hold
	old Hold
}

var q db.Queries

var _ commit.Optimistic = (*Book)(nil)

// NewBook makes an empty book.
func NewBook() *Book {
	return &Book{
		accounts:      make(map[AccountKey]*Account),
		transferNames: make(map[nameKey]*transferName),
	}
}

// NameConstraints are the unique constraints over what callers choose.
func NameConstraints() []string {
	return []string{"ledger_assets_pkey", "ledger_accounts_code_key", "ledger_transfers_biz_no_key",
		"ledger_transfers_reverses_key", "ledger_holds_biz_no_key"}
}

// account names an account to lock and load.
func (b *Book) account(tenant int32, code, asset string) *Account {
	k := AccountKey{tenant, code, asset}
	a := b.accounts[k]
	if a == nil {
		a = b.accountSlab.new()
		a.AccountKey = k
		b.accounts[k] = a
		b.locks = append(b.locks, a)
	}
	return a
}

// accountWithDetails names an account to load with its metadata.
func (b *Book) accountWithDetails(tenant int32, code, asset string) *Account {
	a := b.account(tenant, code, asset)
	if b.details == nil {
		b.details = make(map[*Account]bool)
	}
	b.details[a] = true
	return a
}

func (b *Book) asset(tenant int32, code string) *Asset {
	k := assetKey{tenant, code}
	a := b.assets[k]
	if a == nil {
		if b.assets == nil {
			b.assets = make(map[assetKey]*Asset)
		}
		a = &Asset{Tenant: tenant, Code: code}
		b.assets[k] = a
		b.assetList = append(b.assetList, a)
	}
	return a
}

func (b *Book) transferName(tenant int32, bizNo string) *transferName {
	k := nameKey{tenant, bizNo}
	n := b.transferNames[k]
	if n == nil {
		n = b.nameSlab.new()
		n.nameKey = k
		b.transferNames[k] = n
		b.nameList = append(b.nameList, n)
	}
	return n
}

// want says how many postings a command wants of the transfer that has the name, should it be taken: one
// more than the command itself has tells them apart, however many there are.
func (n *transferName) want(postings int) { n.most = max(n.most, int32(postings)) }

// transferRef names a transfer by id, whose accounts are wanted too.
func (b *Book) transferRef(tenant int32, id int64) *transferRef {
	k := idKey{tenant, id}
	r := b.transferRefs[k]
	if r == nil {
		if b.transferRefs == nil {
			b.transferRefs = make(map[idKey]*transferRef)
		}
		r = &transferRef{idKey: k}
		b.transferRefs[k] = r
		if b.resolved {
			r.t, r.late = b.madeHere(k), true
		}
	}
	return r
}

// madeHere is a transfer of this batch by id, for a command that learns the id while it runs.
func (b *Book) madeHere(k idKey) *Transfer {
	for _, t := range b.made {
		if k == (idKey{t.Tenant, t.ID}) {
			return t.Transfer
		}
	}
	return nil
}

func (b *Book) holdName(tenant int32, bizNo string) *holdName {
	k := nameKey{tenant, bizNo}
	n := b.holdNames[k]
	if n == nil {
		if b.holdNames == nil {
			b.holdNames = make(map[nameKey]*holdName)
		}
		n = &holdName{nameKey: k}
		b.holdNames[k] = n
	}
	return n
}

func (b *Book) holdRef(tenant int32, id int64) *holdRef {
	k := idKey{tenant, id}
	r := b.holdRefs[k]
	if r == nil {
		if b.holdRefs == nil {
			b.holdRefs = make(map[idKey]*holdRef)
		}
		r = &holdRef{idKey: k}
		b.holdRefs[k] = r
		if b.resolved {
			r.h, r.late = b.holds[k], true
		}
	}
	return r
}

// touch saves an account for Undo, before its first change since the mark.
func (b *Book) touch(a *Account) {
	if a.saved != b.gen || b.gen == 0 {
		b.mark.accountSaves = append(b.mark.accountSaves, accountSave{a, *a})
		a.saved = b.gen
	}
	a.dirty = true
}

func (b *Book) touchHold(h *Hold) {
	if h.saved != b.gen || b.gen == 0 {
		b.mark.holdSaves = append(b.mark.holdSaves, holdSave{h, *h})
		h.saved = b.gen
	}
	h.dirty = true
}

// Mark is where the next Undo goes back to.
func (b *Book) Mark() {
	b.gen++
	b.mark = mark{len(b.made), len(b.newHolds), len(b.newDetails), len(b.newAssets),
		b.mark.accountSaves[:0], b.mark.holdSaves[:0]}
}

// Undo takes back all changes since Mark.
func (b *Book) Undo() {
	for i := len(b.mark.accountSaves) - 1; i >= 0; i-- {
		s := &b.mark.accountSaves[i]
		*s.a = s.old
	}
	for i := len(b.mark.holdSaves) - 1; i >= 0; i-- {
		s := &b.mark.holdSaves[i]
		*s.h = s.old
	}
	b.mark.accountSaves, b.mark.holdSaves = b.mark.accountSaves[:0], b.mark.holdSaves[:0]
	for _, t := range b.made[b.mark.made:] {
		t.name.t = nil
		if t.reversed != nil {
			t.reversed.ReversedByID = 0
		}
	}
	b.made = b.made[:b.mark.made]
	for _, h := range b.newHolds[b.mark.holds:] {
		h.name.h = nil
		delete(b.holds, idKey{h.Tenant, h.ID})
	}
	b.newHolds = b.newHolds[:b.mark.holds]
	b.newDetails = b.newDetails[:b.mark.details]
	for _, a := range b.newAssets[b.mark.assets:] {
		*a = Asset{Tenant: a.Tenant, Code: a.Code}
	}
	b.newAssets = b.newAssets[:b.mark.assets]
	b.gen++
}

// Start gives the book the times of the batch and its source of ids.
func (b *Book) Start(at commit.Times, newID func() int64) { b.at, b.newID = at, newID }

// Latest is the newest recorded time in the locked accounts.
func (b *Book) Latest() time.Time {
	var latest time.Time
	for _, a := range b.locks {
		if a.LastEntryAt.After(latest) {
			latest = a.LastEntryAt
		}
	}
	return latest
}
