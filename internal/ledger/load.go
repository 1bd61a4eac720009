package ledger

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/ledger/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Discover finds the accounts of holds to capture and of transfers to reverse, by columns that never change. If such a
// row is committed after Discover, the command either does not find it in Lookup, or returns ErrMoreRows because its
// accounts are not locked.
func (tx *Tx) Discover(p *commit.Pipe) {
	if len(tx.holdNames)+len(tx.holdRefs) > 0 {
		tx.discoverHolds(p)
	}
	if len(tx.transferRefs) > 0 {
		tx.discoverTransfersByID(p)
	}
	if slices.ContainsFunc(tx.nameList, func(n *transferName) bool { return n.reverse }) {
		tx.discoverTransfers(p)
	}
}

func (tx *Tx) discoverHolds(p *commit.Pipe) {
	wanted := func(h *Hold, wants holdWants) {
		tx.account(h.Tenant, h.From, h.Asset)
		for _, code := range wants.to {
			if code = cmp.Or(code, h.To); code != "" {
				tx.account(h.Tenant, code, h.Asset)
			}
		}
	}
	names := slices.DeleteFunc(slices.Collect(maps.Values(tx.holdNames)), func(n *holdName) bool { return !n.account })
	tx.holdsByName(p, names, func(n *holdName, h *Hold) { wanted(h, n.holdWants) })
	tx.holdsByID(p, func(r *holdRef, h *Hold) { wanted(h, r.holdWants) })
}

func (tx *Tx) discoverTransfersByID(p *commit.Pipe) {
	refs := make([]*transferRef, 0, len(tx.transferRefs))
	var arg db.EntryLookupParams
	for _, r := range tx.transferRefs {
		refs = append(refs, r)
		arg.Tenants = append(arg.Tenants, r.tenant)
		arg.TransferIds = append(arg.TransferIds, r.id)
		arg.Most = append(arg.Most, 0)
	}
	p.Queue(func(d commit.DB) error {
		rows, err := q.EntryLookup(p.Context(), d, arg)
		for _, r := range rows {
			tx.account(refs[r.N-1].tenant, r.Code, r.Asset)
		}
		return err
	})
}

func (tx *Tx) discoverTransfers(p *commit.Pipe) {
	var arg db.TransferDiscoverParams
	for _, n := range tx.nameList {
		if n.reverse {
			arg.Tenants = append(arg.Tenants, n.tenant)
			arg.BizNos = append(arg.BizNos, n.bizNo)
		}
	}
	p.Queue(func(d commit.DB) error {
		rows, err := q.TransferDiscover(p.Context(), d, arg)
		for _, r := range rows {
			tx.account(arg.Tenants[r.N-1], r.Code, r.Asset)
		}
		return err
	})
}

// Lookup reads assets, names, and the holds and transfers that commands refer to.
func (tx *Tx) Lookup(p *commit.Pipe) {
	if len(tx.assetList) > 0 {
		tx.lookupAssets(p)
	}
	if len(tx.exists) > 0 {
		tx.lookupAccounts(p)
	}
	if len(tx.nameList) > 0 {
		tx.lookupTransfers(p)
	}
	if len(tx.transferRefs) > 0 {
		tx.lookupTransfersByID(p)
	}
	if len(tx.holdNames)+len(tx.holdRefs) > 0 {
		tx.holdsByName(p, slices.Collect(maps.Values(tx.holdNames)),
			func(n *holdName, h *Hold) { n.h = tx.keepHold(h) })
		tx.holdsByID(p, func(r *holdRef, h *Hold) { r.h = tx.keepHold(h) })
	}
}

func (tx *Tx) lookupAssets(p *commit.Pipe) {
	var arg db.AssetLookupParams
	for _, a := range tx.assetList {
		arg.Tenants = append(arg.Tenants, a.Tenant)
		arg.Codes = append(arg.Codes, a.Code)
	}
	p.Queue(func(d commit.DB) error {
		rows, err := q.AssetLookup(p.Context(), d, arg)
		for _, r := range rows {
			a := tx.assetList[r.N-1]
			a.exists, a.Scale, a.CreatedAt = true, uint8(r.Scale), r.CreatedAt
		}
		return err
	})
}

func (tx *Tx) lookupAccounts(p *commit.Pipe) {
	keys := slices.Collect(maps.Keys(tx.exists))
	var arg db.AccountExistsParams
	for _, k := range keys {
		arg.Tenants, arg.Codes, arg.Assets = append(arg.Tenants, k.Tenant), append(arg.Codes, k.Code),
			append(arg.Assets, k.Asset)
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.AccountExists(p.Context(), d, arg)
		for _, n := range found {
			tx.exists[keys[n-1]] = true
		}
		return err
	})
}

func (tx *Tx) lookupTransfers(p *commit.Pipe) {
	n := len(tx.nameList)
	arg := db.TransferLookupParams{Tenants: make([]int32, n), BizNos: make([]string, n)}
	for i, name := range tx.nameList {
		arg.Tenants[i], arg.BizNos[i] = name.tenant, name.bizNo
	}
	p.Queue(func(d commit.DB) error {
		rows, err := q.TransferLookup(p.Context(), d, arg)
		for i := range rows {
			r := &rows[i]
			name := tx.nameList[r.N-1]
			name.t = &Transfer{Tenant: name.tenant, ID: r.TransferID, BizNo: name.bizNo, Type: r.Type,
				RecordedAt: r.RecordedAt, EffectiveAt: pg.OrZero(r.EffectiveAt), ReversesID: pg.OrZero(r.ReversesID),
				HoldID: pg.OrZero(r.HoldID), Forms: pg.OrZero(r.Forms), Metadata: pg.Metadata(r.Metadata),
				RequestID: r.RequestID}
		}
		return err
	})
}

func (tx *Tx) lookupTransfersByID(p *commit.Pipe) {
	refs := make([]*transferRef, 0, len(tx.transferRefs))
	var arg db.TransferLookupByIDParams
	for _, r := range tx.transferRefs {
		refs = append(refs, r)
		arg.Tenants = append(arg.Tenants, r.tenant)
		arg.TransferIds = append(arg.TransferIds, r.id)
	}
	p.Queue(func(d commit.DB) error {
		rows, err := q.TransferLookupByID(p.Context(), d, arg)
		for i := range rows {
			r := &rows[i]
			ref := refs[r.N-1]
			ref.t = &Transfer{Tenant: ref.tenant, ID: ref.id, BizNo: r.BizNo, Type: r.Type,
				RecordedAt: r.RecordedAt, EffectiveAt: pg.OrZero(r.EffectiveAt), ReversesID: pg.OrZero(r.ReversesID),
				HoldID: pg.OrZero(r.HoldID), Forms: pg.OrZero(r.Forms), Metadata: pg.Metadata(r.Metadata),
				RequestID: r.RequestID}
			if n := tx.transferNames[nameKey{ref.tenant, r.BizNo}]; n != nil && n.t != nil {
				ref.t = n.t // one object per transfer
			}
		}
		return err
	})
}

// holdsByName reads holds, and passes each to found.
func (tx *Tx) holdsByName(p *commit.Pipe, names []*holdName, found func(*holdName, *Hold)) {
	if len(names) == 0 {
		return
	}
	var arg db.HoldLookupParams
	for _, n := range names {
		arg.Tenants = append(arg.Tenants, n.tenant)
		arg.BizNos = append(arg.BizNos, n.bizNo)
	}
	p.Queue(func(d commit.DB) error {
		rows, err := q.HoldLookup(p.Context(), d, arg)
		for _, r := range rows {
			n := names[r.N-1]
			found(n, holdOf(n.tenant, n.bizNo,
				db.HoldLookupByIDRow{N: r.N, BizNo: n.bizNo, AccountID: r.AccountID, Code: r.Code,
					Asset: r.Asset, Scale: r.Scale, ToCode: r.ToCode, Form: r.Form, Amount: r.Amount,
					Captured: r.Captured, State: r.State, LifeMs: r.LifeMs, ExpiresAt: r.ExpiresAt,
					CreatedAt: r.CreatedAt, ClosedAt: r.ClosedAt, Metadata: r.Metadata, RequestID: r.RequestID},
				r.HoldID))
		}
		return err
	})
}

// holdsByID reads the holds that commands name by id, and passes each to found.
func (tx *Tx) holdsByID(p *commit.Pipe, found func(*holdRef, *Hold)) {
	if len(tx.holdRefs) == 0 {
		return
	}
	refs := slices.Collect(maps.Values(tx.holdRefs))
	var arg db.HoldLookupByIDParams
	for _, r := range refs {
		arg.Tenants = append(arg.Tenants, r.tenant)
		arg.HoldIds = append(arg.HoldIds, r.id)
	}
	p.Queue(func(d commit.DB) error {
		rows, err := q.HoldLookupByID(p.Context(), d, arg)
		for _, row := range rows {
			r := refs[row.N-1]
			found(r, holdOf(r.tenant, row.BizNo, row, r.id))
		}
		return err
	})
}

func holdOf(tenant int32, bizNo string, r db.HoldLookupByIDRow, id int64) *Hold {
	return &Hold{Tenant: tenant, ID: id, BizNo: bizNo, AccountID: r.AccountID, From: r.Code, Asset: r.Asset,
		Scale: uint8(r.Scale), To: r.ToCode, Form: pg.OrZero(r.Form), Amount: r.Amount, Captured: r.Captured,
		State: r.State,
		Life:  pg.Milliseconds(r.LifeMs), ExpiresAt: r.ExpiresAt, CreatedAt: r.CreatedAt,
		ClosedAt: pg.OrZero(r.ClosedAt), Metadata: pg.Metadata(r.Metadata), RequestID: r.RequestID}
}

// keepHold returns one object per hold, however often the hold is loaded.
func (tx *Tx) keepHold(h *Hold) *Hold {
	k := idKey{h.Tenant, h.ID}
	if tx.holds == nil {
		tx.holds = make(map[idKey]*Hold)
	}
	if kept := tx.holds[k]; kept != nil {
		return kept
	}
	tx.holds[k] = h
	return h
}

// Resolve reads rows that depend on found rows: the entries of existing transfers, the due holds of the locked
// accounts, and metadata.
func (tx *Tx) Resolve(p *commit.Pipe) {
	if tx.resolved {
		return
	}
	tx.resolved = true
	if len(tx.transferRefs) > 0 || slices.ContainsFunc(tx.nameList, func(n *transferName) bool { return n.t != nil }) {
		tx.resolveTransfers(p)
	}
	if due := tx.dueAccounts(); len(due) > 0 {
		tx.resolveDue(p, due)
	}
	if len(tx.details) > 0 {
		tx.resolveDetails(p)
	}
}

func (tx *Tx) resolveTransfers(p *commit.Pipe) {
	var found []*Transfer
	var arg db.EntryLookupParams
	add := func(t *Transfer, most int32) {
		if t != nil && !t.complete {
			t.complete = true
			found = append(found, t)
			arg.Tenants = append(arg.Tenants, t.Tenant)
			arg.TransferIds = append(arg.TransferIds, t.ID)
			arg.Most = append(arg.Most, most)
		}
	}
	for _, r := range tx.transferRefs {
		add(r.t, 0)
	}
	for _, n := range tx.nameList {
		if n.all {
			add(n.t, 0)
		} else {
			add(n.t, n.most)
		}
	}
	if len(found) == 0 {
		return
	}
	p.Queue(func(d commit.DB) error {
		rows, err := q.EntryLookup(p.Context(), d, arg)
		for _, r := range rows {
			t := found[r.N-1]
			t.Entries = append(t.Entries,
				Entry{AccountID: r.AccountID, Account: r.Code, Asset: r.Asset, Scale: uint8(r.Scale),
					Version: r.Version, TransferID: t.ID, Posting: r.Posting, Amount: r.Amount, Before: r.BalanceBefore,
					After: r.BalanceAfter, RecordedAt: r.RecordedAt, EffectiveAt: pg.OrZero(r.EffectiveAt)})
		}
		return err
	})
	p.Queue(func(d commit.DB) error {
		rows, err := q.ReversalLookup(p.Context(), d,
			db.ReversalLookupParams{Tenants: arg.Tenants, TransferIds: arg.TransferIds})
		for _, r := range rows {
			found[r.N-1].ReversedByID = r.TransferID
		}
		return err
	})
}

// maxExpiries is the approximate number of holds that expire in one batch.
const maxExpiries = 2000

// resolveDue makes the due holds of locked accounts expire, before any command and regardless of the
// commands' outcome: otherwise a hold past its expiry would reduce the available balance until the scheduler
// runs. An account with very many due holds expires some of them in this batch, and its commands run after it.
func (tx *Tx) resolveDue(p *commit.Pipe, due []*Account) {
	most := max(1, maxExpiries/len(due))
	arg := db.HoldDueParams{Now: tx.at.Now, Most: int64(most) + 1}
	for _, a := range due {
		if a.writer != nil { // its holds may not be written yet
			p.Refuse(commit.ErrConflict)
			return
		}
		arg.Tenants = append(arg.Tenants, a.Tenant)
		arg.AccountIds = append(arg.AccountIds, a.ID)
	}
	p.Queue(func(d commit.DB) error {
		rows, err := q.HoldDue(p.Context(), d, arg)
		if err != nil {
			return err
		}
		for _, a := range due {
			a.NextExpiryAt, a.dirty = time.Time{}, true
		}
		met := make([]int, len(due))
		for _, r := range rows {
			a := due[r.N-1]
			if met[r.N-1]++; met[r.N-1] > most && !r.ExpiresAt.After(tx.at.Now) {
				a.NextExpiryAt, a.overdue = r.ExpiresAt, true
				continue
			}
			tx.expireIfDue(a, tx.keepHold(&Hold{Tenant: a.Tenant, ID: r.HoldID, BizNo: r.BizNo, AccountID: a.ID,
				Amount: r.Amount, Captured: r.Captured, State: Held, ExpiresAt: r.ExpiresAt}))
		}
		return nil
	})
}

// dueAccounts returns the accounts that may have due holds.
func (tx *Tx) dueAccounts() (due []*Account) {
	for _, a := range tx.accountList {
		if a.exists && !a.NextExpiryAt.IsZero() && !a.NextExpiryAt.After(tx.at.Now) {
			due = append(due, a)
		}
	}
	return due
}

// expireIfDue makes an open hold expire if it is due, and otherwise notes its expiry.
func (tx *Tx) expireIfDue(a *Account, h *Hold) {
	if h.ExpiresAt.After(tx.at.Now) {
		tx.expectExpiry(a, h)
		return
	}
	tx.touch(a)
	tx.touchHold(h)
	a.Held, _ = a.Held.Sub(h.Remaining())
	h.State, h.ClosedAt = Expired, tx.at.Now
}

// expectExpiry lowers the account's next expiry to the hold's.
func (tx *Tx) expectExpiry(a *Account, h *Hold) {
	if a.NextExpiryAt.IsZero() || h.ExpiresAt.Before(a.NextExpiryAt) {
		a.NextExpiryAt = h.ExpiresAt
	}
}

func (tx *Tx) resolveDetails(p *commit.Pipe) {
	var found []*Account
	var arg db.AccountDetailLookupParams
	for a := range tx.details {
		if a.exists {
			found = append(found, a)
			arg.Tenants = append(arg.Tenants, a.Tenant)
			arg.AccountIds = append(arg.AccountIds, a.ID)
		}
	}
	if len(found) == 0 {
		return
	}
	p.Queue(func(d commit.DB) error {
		rows, err := q.AccountDetailLookup(p.Context(), d, arg)
		for _, r := range rows {
			a := found[r.N-1]
			a.Metadata, a.CreatedAt = pg.Metadata(r.Metadata), r.CreatedAt
		}
		return err
	})
}
