package ledger

import (
	"slices"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/ledger/internal/db"
)

// Tx holds the ledger's rows of one batch's transaction. Commands declare rows and get handles, which the load
// fills in; verbs work on the handles. It is not safe for concurrent use.
type Tx struct {
	at    commit.Times
	newID func() int64

	accounts    map[AccountKey]*Account
	accountList []*Account // all accounts; sorted in lock order by Lock or Read
	assets      map[assetKey]*Asset
	assetList   []*Asset
	seen        map[assetKey]*Asset // assets that are only read: they never change, so they are not latched
	exists      map[AccountKey]bool // whether accounts exist, read without a latch: accounts are never deleted
	details     map[*Account]bool   // load their metadata too

	transferNames map[nameKey]*transferName
	nameList      []*transferName // all transferNames, in order of declaration
	transferRefs  map[idKey]*transferRef
	holdNames     map[nameKey]*holdName
	holdRefs      map[idKey]*holdRef
	holds         map[idKey]*Hold // every hold in memory

	made       []madeTransfer
	newHolds   []madeHold
	newDetails []*Account // existing accounts with changed metadata
	newAssets  []*Asset

	resolved bool
	mark     mark
	gen      uint64
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

// transferName is the handle of a transfer's biz_no; t is set if the name is taken.
type transferName struct {
	nameKey
	t       *Transfer
	reverse bool  // to be reversed: load its accounts too
	most    int32 // number of postings to load
	all     bool  // load all postings
}

type transferRef struct {
	idKey
	t    *Transfer
	late bool // declared while commands ran: only transfers of this batch can be found
}

// holdName is the handle of a hold's biz_no; h is set if the name is taken.
type holdName struct {
	nameKey
	h *Hold
	holdWants
}

// holdWants lists the parts of a hold that commands need Discover to find.
type holdWants struct {
	account bool     // the hold's account; otherwise only the name
	to      []string // destinations of captures; "": the hold's default
}

type holdRef struct {
	idKey
	h    *Hold
	late bool // see transferRef
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

// mark is the savepoint for Undo.
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

var _ commit.Optimistic = (*Tx)(nil)

// NewTx returns the ledger's part of an empty batch.
func NewTx() *Tx {
	return &Tx{
		accounts:      make(map[AccountKey]*Account),
		transferNames: make(map[nameKey]*transferName),
	}
}

// NameConstraints returns the unique constraints on names chosen by callers.
func NameConstraints() []string {
	return []string{"ledger_assets_pkey", "ledger_accounts_code_key", "ledger_transfers_biz_no_key",
		"ledger_transfers_reverses_key", "ledger_holds_biz_no_key"}
}

// account declares an account to lock and load.
func (tx *Tx) account(tenant int32, code, asset string) *Account {
	k := AccountKey{tenant, code, asset}
	a := tx.accounts[k]
	if a == nil {
		a = &Account{AccountKey: k}
		tx.accounts[k] = a
		tx.accountList = append(tx.accountList, a)
	}
	return a
}

// accountWithDetails declares an account to load with its metadata.
func (tx *Tx) accountWithDetails(tenant int32, code, asset string) *Account {
	a := tx.account(tenant, code, asset)
	if tx.details == nil {
		tx.details = make(map[*Account]bool)
	}
	tx.details[a] = true
	return a
}

// SeeAsset declares an asset whose number of decimals another domain needs.
func (tx *Tx) SeeAsset(tenant int32, code string) {
	k := assetKey{tenant, code}
	if tx.seen[k] != nil {
		return
	}
	if tx.seen == nil {
		tx.seen = make(map[assetKey]*Asset)
	}
	a := &Asset{Tenant: tenant, Code: code}
	tx.seen[k] = a
	tx.assetList = append(tx.assetList, a)
}

// Decimals returns the number of decimals of a declared asset. Returns fault ASSET_NOT_FOUND.
func (tx *Tx) Decimals(tenant int32, code string) (uint8, error) {
	k := assetKey{tenant, code}
	a := tx.assets[k]
	if a == nil {
		a = tx.seen[k]
	}
	if !a.exists {
		return 0, assetNotFound(code)
	}
	return a.Scale, nil
}

// SeeAccount declares an account whose existence another domain needs. It may be called again for the account after the
// look-up, when an operation of an Execute with references is decoded again, and keeps the result of the look-up.
func (tx *Tx) SeeAccount(tenant int32, code, asset string) {
	if tx.exists == nil {
		tx.exists = make(map[AccountKey]bool)
	}
	k := AccountKey{tenant, code, asset}
	if _, seen := tx.exists[k]; !seen {
		tx.exists[k] = false
	}
}

// MustExist returns fault ACCOUNT_NOT_FOUND about a field of the request if a declared account does not exist.
func (tx *Tx) MustExist(tenant int32, code, asset, field string) error {
	k := AccountKey{tenant, code, asset}
	if a := tx.accounts[k]; a != nil && a.exists || tx.exists[k] {
		return nil
	}
	return notFound(&Account{AccountKey: k}, field)
}

func (tx *Tx) asset(tenant int32, code string) *Asset {
	k := assetKey{tenant, code}
	a := tx.assets[k]
	if a == nil {
		if tx.assets == nil {
			tx.assets = make(map[assetKey]*Asset)
		}
		a = &Asset{Tenant: tenant, Code: code}
		tx.assets[k] = a
		tx.assetList = append(tx.assetList, a)
	}
	return a
}

func (tx *Tx) transferName(tenant int32, bizNo string) *transferName {
	k := nameKey{tenant, bizNo}
	n := tx.transferNames[k]
	if n == nil {
		n = &transferName{nameKey: k}
		tx.transferNames[k] = n
		tx.nameList = append(tx.nameList, n)
	}
	return n
}

// SeeTransfer declares the biz_no of a transfer that a later command makes.
func (tx *Tx) SeeTransfer(tenant int32, bizNo string) { tx.transferName(tenant, bizNo).want(1) }

// HasTransfer reports whether a declared biz_no is that of a transfer.
func (tx *Tx) HasTransfer(tenant int32, bizNo string) bool {
	return tx.transferName(tenant, bizNo).t != nil
}

// want requests the postings to load if the name is taken: one more than the command itself has suffices to
// detect a difference.
func (n *transferName) want(postings int) { n.most = max(n.most, int32(postings)) }

// transferRef declares a transfer by id, including its accounts.
func (tx *Tx) transferRef(tenant int32, id int64) *transferRef {
	k := idKey{tenant, id}
	r := tx.transferRefs[k]
	if r == nil {
		if tx.transferRefs == nil {
			tx.transferRefs = make(map[idKey]*transferRef)
		}
		r = &transferRef{idKey: k}
		tx.transferRefs[k] = r
		if tx.resolved {
			r.t, r.late = tx.madeHere(k), true
		}
	}
	return r
}

// madeHere finds a transfer of this batch by id, for a command that learns the id in Apply.
func (tx *Tx) madeHere(k idKey) *Transfer {
	for _, t := range tx.made {
		if k == (idKey{t.Tenant, t.ID}) {
			return t.Transfer
		}
	}
	return nil
}

func (tx *Tx) holdName(tenant int32, bizNo string) *holdName {
	k := nameKey{tenant, bizNo}
	n := tx.holdNames[k]
	if n == nil {
		if tx.holdNames == nil {
			tx.holdNames = make(map[nameKey]*holdName)
		}
		n = &holdName{nameKey: k}
		tx.holdNames[k] = n
	}
	return n
}

func (tx *Tx) holdRef(tenant int32, id int64) *holdRef {
	k := idKey{tenant, id}
	r := tx.holdRefs[k]
	if r == nil {
		if tx.holdRefs == nil {
			tx.holdRefs = make(map[idKey]*holdRef)
		}
		r = &holdRef{idKey: k}
		tx.holdRefs[k] = r
		if tx.resolved {
			r.h, r.late = tx.holds[k], true
		}
	}
	return r
}

// touch saves an account for Undo before its first change since the mark.
func (tx *Tx) touch(a *Account) {
	if a.saved != tx.gen || tx.gen == 0 {
		tx.mark.accountSaves = append(tx.mark.accountSaves, accountSave{a, *a})
		a.saved = tx.gen
	}
	a.dirty = true
}

func (tx *Tx) touchHold(h *Hold) {
	if h.saved != tx.gen || tx.gen == 0 {
		tx.mark.holdSaves = append(tx.mark.holdSaves, holdSave{h, *h})
		h.saved = tx.gen
	}
	h.dirty = true
}

// Mark sets the savepoint for Undo.
func (tx *Tx) Mark() {
	tx.gen++
	tx.mark = mark{len(tx.made), len(tx.newHolds), len(tx.newDetails), len(tx.newAssets),
		tx.mark.accountSaves[:0], tx.mark.holdSaves[:0]}
}

// madeByCommand reports whether the current command made the transfer or hold with this id.
func (tx *Tx) madeByCommand(id int64) bool {
	return slices.ContainsFunc(tx.made[tx.mark.made:], func(t madeTransfer) bool { return t.ID == id }) ||
		slices.ContainsFunc(tx.newHolds[tx.mark.holds:], func(h madeHold) bool { return h.ID == id })
}

// Undo reverts all changes since Mark.
func (tx *Tx) Undo() {
	for i := len(tx.mark.accountSaves) - 1; i >= 0; i-- {
		s := &tx.mark.accountSaves[i]
		*s.a = s.old
	}
	for i := len(tx.mark.holdSaves) - 1; i >= 0; i-- {
		s := &tx.mark.holdSaves[i]
		*s.h = s.old
	}
	tx.mark.accountSaves, tx.mark.holdSaves = tx.mark.accountSaves[:0], tx.mark.holdSaves[:0]
	for _, t := range tx.made[tx.mark.made:] {
		t.name.t = nil
		if t.reversed != nil {
			t.reversed.ReversedByID = 0
		}
	}
	tx.made = tx.made[:tx.mark.made]
	for _, h := range tx.newHolds[tx.mark.holds:] {
		h.name.h = nil
		delete(tx.holds, idKey{h.Tenant, h.ID})
	}
	tx.newHolds = tx.newHolds[:tx.mark.holds]
	tx.newDetails = tx.newDetails[:tx.mark.details]
	for _, a := range tx.newAssets[tx.mark.assets:] {
		*a = Asset{Tenant: a.Tenant, Code: a.Code}
	}
	tx.newAssets = tx.newAssets[:tx.mark.assets]
	tx.gen++
}

// Start sets the batch's times and id source.
func (tx *Tx) Start(at commit.Times, newID func() int64) { tx.at, tx.newID = at, newID }

// Latest returns the newest recorded time of the accounts.
func (tx *Tx) Latest() time.Time {
	var latest time.Time
	for _, a := range tx.accountList {
		if a.LastEntryAt.After(latest) {
			latest = a.LastEntryAt
		}
	}
	return latest
}
