package ledger

import (
	"slices"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/ledger/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Flush writes the changes, table by table. Write updates the existing accounts.
func (tx *Tx) Flush(p *commit.Pipe) {
	if len(tx.newAssets) > 0 {
		tx.insertAssets(p)
	}
	if slices.ContainsFunc(tx.accountList, func(a *Account) bool { return a.fresh }) {
		tx.insertAccounts(p)
	}
	if len(tx.newDetails) > 0 {
		tx.updateDetails(p)
	}
	if len(tx.made) > 0 {
		tx.insertTransfers(p)
		tx.insertEntries(p)
	}
	if len(tx.newHolds) > 0 {
		tx.insertHolds(p)
	}
	if len(tx.holds) > 0 {
		tx.updateHolds(p)
	}
}

func (tx *Tx) insertAssets(p *commit.Pipe) {
	arg := db.AssetInsertParams{Now: tx.at.Now}
	for _, a := range tx.newAssets {
		arg.Tenants = append(arg.Tenants, a.Tenant)
		arg.Codes = append(arg.Codes, a.Code)
		arg.Scales = append(arg.Scales, int16(a.Scale))
	}
	p.Queue(func(d commit.DB) error { return q.AssetInsert(p.Context(), d, arg) })
}

func limitText(n *amount.Int) string {
	if n == nil {
		return ""
	}
	return n.String()
}

func (tx *Tx) insertAccounts(p *commit.Pipe) {
	var arg db.AccountInsertParams
	details := db.AccountDetailInsertParams{Now: tx.at.Now}
	for _, a := range tx.accountList {
		if !a.fresh {
			continue
		}
		arg.Tenants = append(arg.Tenants, a.Tenant)
		arg.AccountIds = append(arg.AccountIds, a.ID)
		arg.Codes = append(arg.Codes, a.Code)
		arg.Assets = append(arg.Assets, a.Asset)
		arg.Scales = append(arg.Scales, int16(a.Scale))
		arg.Kinds = append(arg.Kinds, a.Kind)
		arg.States = append(arg.States, a.State)
		arg.Balances = append(arg.Balances, a.Balance)
		arg.Held = append(arg.Held, a.Held)
		arg.MinBalances = append(arg.MinBalances, limitText(a.Min))
		arg.MaxBalances = append(arg.MaxBalances, limitText(a.Max))
		arg.Versions = append(arg.Versions, a.Version)
		arg.LastEntryAt = append(arg.LastEntryAt, a.LastEntryAt)
		arg.NextExpiryAt = append(arg.NextExpiryAt, a.NextExpiryAt)
		details.Tenants = append(details.Tenants, a.Tenant)
		details.AccountIds = append(details.AccountIds, a.ID)
		details.Metadata = append(details.Metadata, pg.JSONOrEmpty(a.Metadata))
		details.RequestIds = append(details.RequestIds, a.madeBy)
	}
	p.Queue(func(d commit.DB) error { return q.AccountInsert(p.Context(), d, arg) })
	p.Queue(func(d commit.DB) error { return q.AccountDetailInsert(p.Context(), d, details) })
}

func (tx *Tx) updateDetails(p *commit.Pipe) {
	var arg db.AccountDetailUpdateParams
	written := map[*Account]bool{}
	for _, a := range tx.newDetails {
		if a.fresh || written[a] {
			continue
		}
		written[a] = true
		arg.Tenants = append(arg.Tenants, a.Tenant)
		arg.AccountIds = append(arg.AccountIds, a.ID)
		arg.Metadata = append(arg.Metadata, pg.JSONOrEmpty(a.Metadata))
	}
	if len(arg.Tenants) == 0 {
		return
	}
	p.Queue(func(d commit.DB) error { return q.AccountDetailUpdate(p.Context(), d, arg) })
}

func (tx *Tx) insertTransfers(p *commit.Pipe) {
	arg := db.TransferInsertParams{Now: tx.at.Recorded}
	pg.Reserve(&arg, len(tx.made))
	for _, t := range tx.made {
		arg.Tenants = append(arg.Tenants, t.Tenant)
		arg.TransferIds = append(arg.TransferIds, t.ID)
		arg.BizNos = append(arg.BizNos, t.BizNo)
		arg.Types = append(arg.Types, t.Type)
		arg.EffectiveAt = append(arg.EffectiveAt, t.EffectiveAt)
		arg.ReversesIds = append(arg.ReversesIds, t.ReversesID)
		arg.HoldIds = append(arg.HoldIds, t.HoldID)
		arg.Forms = append(arg.Forms, t.Forms)
		arg.Metadata = append(arg.Metadata, pg.JSON(t.Metadata))
		arg.Principals = append(arg.Principals, t.Principal)
		arg.RequestIds = append(arg.RequestIds, t.RequestID)
	}
	// Most batches have none of these.
	arg.EffectiveAt, arg.Forms = pg.OrNull(arg.EffectiveAt), pg.OrNull(arg.Forms)
	arg.ReversesIds, arg.HoldIds = pg.OrNull(arg.ReversesIds), pg.OrNull(arg.HoldIds)
	if !slices.ContainsFunc(arg.Metadata, func(m []byte) bool { return m != nil }) {
		arg.Metadata = nil
	}
	p.Queue(func(d commit.DB) error { return q.TransferInsert(p.Context(), d, arg) })
}

func (tx *Tx) insertEntries(p *commit.Pipe) {
	arg := db.EntryInsertParams{Now: tx.at.Recorded}
	pg.Reserve(&arg, 2*len(tx.made)) // or more
	for _, t := range tx.made {
		for i := range t.Entries {
			e := &t.Entries[i]
			arg.Tenants = append(arg.Tenants, t.Tenant)
			arg.AccountIds = append(arg.AccountIds, e.AccountID)
			arg.Versions = append(arg.Versions, e.Version)
			arg.TransferIds = append(arg.TransferIds, t.ID)
			arg.EffectiveAt = append(arg.EffectiveAt, e.EffectiveAt)
			arg.Postings = append(arg.Postings, e.Posting)
			arg.Assets = append(arg.Assets, e.Asset)
			arg.Amounts = append(arg.Amounts, e.Amount)
			arg.BalancesBefore = append(arg.BalancesBefore, e.Before)
			arg.BalancesAfter = append(arg.BalancesAfter, e.After)
		}
	}
	arg.EffectiveAt = pg.OrNull(arg.EffectiveAt)
	p.Queue(func(d commit.DB) error { return q.EntryInsert(p.Context(), d, arg) })
}

func (tx *Tx) insertHolds(p *commit.Pipe) {
	arg := db.HoldInsertParams{Now: tx.at.Now}
	for _, h := range tx.newHolds {
		arg.Tenants = append(arg.Tenants, h.Tenant)
		arg.HoldIds = append(arg.HoldIds, h.ID)
		arg.BizNos = append(arg.BizNos, h.BizNo)
		arg.AccountIds = append(arg.AccountIds, h.AccountID)
		arg.ToCodes = append(arg.ToCodes, h.To)
		arg.Forms = append(arg.Forms, h.Form)
		arg.Amounts = append(arg.Amounts, h.Amount)
		arg.Captured = append(arg.Captured, h.Captured)
		arg.States = append(arg.States, h.State)
		arg.LifeMs = append(arg.LifeMs, h.Life.Milliseconds())
		arg.ExpiresAt = append(arg.ExpiresAt, h.ExpiresAt)
		arg.ClosedAt = append(arg.ClosedAt, h.ClosedAt)
		arg.Metadata = append(arg.Metadata, pg.JSON(h.Metadata))
		arg.Principals = append(arg.Principals, h.Principal)
		arg.RequestIds = append(arg.RequestIds, h.RequestID)
	}
	p.Queue(func(d commit.DB) error { return q.HoldInsert(p.Context(), d, arg) })
}

func (tx *Tx) updateHolds(p *commit.Pipe) {
	var arg db.HoldUpdateParams
	for _, h := range tx.holds {
		if !h.dirty || h.fresh {
			continue
		}
		arg.Tenants = append(arg.Tenants, h.Tenant)
		arg.HoldIds, arg.BizNos = append(arg.HoldIds, h.ID), append(arg.BizNos, h.BizNo)
		arg.Captured = append(arg.Captured, h.Captured)
		arg.States = append(arg.States, h.State)
		arg.ClosedAt = append(arg.ClosedAt, h.ClosedAt)
	}
	if len(arg.HoldIds) == 0 {
		return
	}
	p.Queue(func(d commit.DB) error { return q.HoldUpdate(p.Context(), d, arg) })
}
