package ledger

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/ledger/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Accounts are shared rows: batches take them over from each other (see commit.Optimistic).

var rowSeed, transferSeed, holdSeed, assetSeed = maphash.MakeSeed(), maphash.MakeSeed(), maphash.MakeSeed(),
	maphash.MakeSeed()

// Latch shares the accounts, and owns the names of transfers, holds and assets.
func (tx *Tx) Latch(l *commit.LatchKeys) {
	for _, a := range tx.accountList {
		l.Share(maphash.Comparable(rowSeed, a.AccountKey))
	}
	for _, n := range tx.nameList {
		l.Own(maphash.Comparable(transferSeed, n.nameKey))
	}
	for k := range tx.holdNames {
		l.Own(maphash.Comparable(holdSeed, k))
	}
	for k := range tx.assets {
		l.Own(maphash.Comparable(assetSeed, k))
	}
}

// CanOverlap is true for batches of transfers and new holds, which see only accounts and names.
func (tx *Tx) CanOverlap() bool {
	if len(tx.assets) > 0 || len(tx.details) > 0 || len(tx.transferRefs) > 0 || len(tx.holdRefs) > 0 {
		return false
	}
	for _, n := range tx.nameList {
		if n.reverse {
			return false
		}
	}
	for _, n := range tx.holdNames {
		if n.account {
			return false
		}
	}
	return true
}

// TakeOver copies the accounts of the preceding batch.
func (tx *Tx) TakeOver(from commit.Participant, writer *commit.RowWriter) {
	other := from.(*Tx)
	for _, a := range tx.accountList {
		o := other.accounts[a.AccountKey]
		if o == nil || !o.exists {
			continue
		}
		a.ID, a.Scale, a.Kind, a.State = o.ID, o.Scale, o.Kind, o.State
		a.Balance, a.Held, a.Min, a.Max, a.Version = o.Balance, o.Held, o.Min, o.Max, o.Version
		a.LastEntryAt, a.NextExpiryAt = o.LastEntryAt, o.NextExpiryAt
		a.exists, a.xmin, a.writer, a.tid = true, o.xmin, o.writer, o.tid
		if o.dirty {
			a.writer, a.tid = writer, pgtype.TID{}
		}
	}
}

// Lock locks and loads the accounts, sorted by tenant, code and asset.
func (tx *Tx) Lock(p *commit.Pipe) {
	arg := accountNames(tx.sorted())
	if len(arg.Codes) == 0 {
		return
	}
	p.Queue(func(d commit.DB) error {
		rows, err := q.AccountLock(p.Context(), d, arg)
		for i := range rows {
			tx.accountList[rows[i].N-1].load(&rows[i])
		}
		return err
	})
}

// Read loads, without locks, the accounts that were not taken over.
func (tx *Tx) Read(p *commit.Pipe) {
	missing := make([]*Account, 0, len(tx.accountList))
	for _, a := range tx.sorted() {
		if !a.exists {
			missing = append(missing, a)
		}
	}
	arg := db.AccountLookupParams(accountNames(missing))
	if len(arg.Codes) == 0 {
		return
	}
	p.Queue(func(d commit.DB) error {
		rows, err := q.AccountLookup(p.Context(), d, arg)
		for i := range rows {
			missing[rows[i].N-1].load((*db.AccountLockRow)(&rows[i]))
		}
		return err
	})
}

func (tx *Tx) sorted() []*Account {
	slices.SortFunc(tx.accountList, func(x, y *Account) int { return x.AccountKey.compare(&y.AccountKey) })
	return tx.accountList
}

func (k *AccountKey) compare(l *AccountKey) int {
	if k.Tenant != l.Tenant {
		return cmp.Compare(k.Tenant, l.Tenant)
	}
	if c := strings.Compare(k.Code, l.Code); c != 0 {
		return c
	}
	return strings.Compare(k.Asset, l.Asset)
}

func accountNames(accounts []*Account) (arg db.AccountLockParams) {
	pg.Reserve(&arg, len(accounts))
	for _, a := range accounts {
		arg.Tenants, arg.Codes, arg.Assets = append(arg.Tenants, a.Tenant), append(arg.Codes, a.Code),
			append(arg.Assets, a.Asset)
	}
	return arg
}

func (a *Account) load(r *db.AccountLockRow) {
	a.exists, a.xmin, a.tid = true, r.Xmin.Uint32, r.Ctid
	a.ID, a.Scale, a.Kind, a.State = r.AccountID, uint8(r.Scale), r.Kind, r.State
	a.Balance, a.Held, a.Min, a.Max, a.Version = r.Balance, r.Held, r.MinBalance, r.MaxBalance, r.Version
	a.LastEntryAt, a.NextExpiryAt = pg.OrZero(r.LastEntryAt), pg.OrZero(r.NextExpiryAt)
}

// written is the id of the transaction that wrote the account's current version.
func (a *Account) written() pgtype.Uint32 {
	if a.writer != nil {
		return pgtype.Uint32{Uint32: a.writer.XID(), Valid: true}
	}
	return pgtype.Uint32{Uint32: a.xmin, Valid: true}
}

// Confirm locks all accounts that the batch read, in the global lock order, unless Write updates every one of them.
// Write alone would lock the updated accounts before the read-only ones and violate that order.
func (tx *Tx) Confirm(p *commit.Pipe) {
	var arg db.AccountConfirmParams
	pg.Reserve(&arg, len(tx.accountList))
	seen := false
	for _, a := range tx.accountList {
		if a.exists {
			arg.Tenants = append(arg.Tenants, a.Tenant)
			arg.AccountIds = append(arg.AccountIds, a.ID)
			arg.Writers = append(arg.Writers, a.written())
			seen = seen || !a.dirty
		}
	}
	if !seen {
		return
	}
	p.Queue(func(d commit.DB) error { return q.AccountConfirm(p.Context(), d, arg) })
}

// Write updates the changed accounts.
func (tx *Tx) Write(p *commit.Pipe) {
	var arg db.AccountUpdateParams
	pg.Reserve(&arg, len(tx.accountList))
	changed := slices.ContainsFunc(tx.accountList, func(a *Account) bool { return a.changed && !a.fresh })
	for _, a := range tx.accountList {
		if !a.dirty || a.fresh {
			continue
		}
		arg.Tenants = append(arg.Tenants, a.Tenant)
		arg.AccountIds = append(arg.AccountIds, a.ID)
		arg.Writers = append(arg.Writers, a.written())
		arg.Tids = append(arg.Tids, a.tid)
		arg.Balances = append(arg.Balances, a.Balance)
		arg.Held = append(arg.Held, a.Held)
		arg.Versions = append(arg.Versions, a.Version)
		arg.LastEntryAt = append(arg.LastEntryAt, a.LastEntryAt)
		arg.NextExpiryAt = append(arg.NextExpiryAt, a.NextExpiryAt)
		if changed {
			arg.States = append(arg.States, a.State)
			arg.MinBalances = append(arg.MinBalances, limitText(a.Min))
			arg.MaxBalances = append(arg.MaxBalances, limitText(a.Max))
		}
	}
	if len(arg.AccountIds) > 0 {
		arg.NextExpiryAt = pg.OrNull(arg.NextExpiryAt)
		p.Queue(func(d commit.DB) error { return q.AccountUpdate(p.Context(), d, arg) })
	}
}

// Available is the amount that may be debited: balance - held - least balance. ok is false if there is no least
// balance, or if the amount exceeds 38 digits, which is unbounded in effect.
func (a *Account) Available() (available amount.Int, ok bool) {
	if a.Min == nil {
		return amount.Int{}, false
	}
	free, ok := a.Balance.Sub(a.Held)
	if !ok {
		return amount.Int{}, false
	}
	return free.Sub(*a.Min)
}
