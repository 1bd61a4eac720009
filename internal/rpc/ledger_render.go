package rpc

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

var kinds = map[string]ledgerv1.AccountKind{
	ledger.KindAsset:     ledgerv1.AccountKind_ACCOUNT_KIND_ASSET,
	ledger.KindLiability: ledgerv1.AccountKind_ACCOUNT_KIND_LIABILITY,
	ledger.KindEquity:    ledgerv1.AccountKind_ACCOUNT_KIND_EQUITY,
	ledger.KindIncome:    ledgerv1.AccountKind_ACCOUNT_KIND_INCOME,
	ledger.KindExpense:   ledgerv1.AccountKind_ACCOUNT_KIND_EXPENSE,
}

func kindName(k ledgerv1.AccountKind) string {
	for name, kind := range kinds {
		if kind == k {
			return name
		}
	}
	return ledger.KindLiability
}

var accountStates = map[string]ledgerv1.AccountState{
	ledger.Open: ledgerv1.AccountState_ACCOUNT_STATE_OPEN, ledger.Frozen: ledgerv1.AccountState_ACCOUNT_STATE_FROZEN,
	ledger.Closed: ledgerv1.AccountState_ACCOUNT_STATE_CLOSED,
}

var holdStates = map[string]ledgerv1.HoldState{
	ledger.Held: ledgerv1.HoldState_HOLD_STATE_HELD, ledger.Captured: ledgerv1.HoldState_HOLD_STATE_CAPTURED,
	ledger.Released: ledgerv1.HoldState_HOLD_STATE_RELEASED, ledger.Expired: ledgerv1.HoldState_HOLD_STATE_EXPIRED,
}

func renderAccount(a *ledger.Account) *ledgerv1.Account {
	r := &ledgerv1.Account{Code: a.Code, Asset: a.Asset, Kind: kinds[a.Kind], State: accountStates[a.State],
		Balance: a.Format(a.Balance), Held: a.Format(a.Held), Version: a.Version, Metadata: a.Metadata,
		CreateTime: timestamp(a.CreatedAt), LastEntryTime: timestamp(a.LastEntryAt)}
	if available, bounded := a.Available(); bounded {
		r.Available = a.Format(available)
	}
	r.MinBalance, r.MaxBalance = limitOf(a, a.Min), limitOf(a, a.Max)
	return r
}

func limitOf(a *ledger.Account, n *amount.Int) *string {
	if n == nil {
		return nil
	}
	s := a.Format(*n)
	return &s
}

// renderEntry shows an entry by itself; within its transfer sideOf is enough.
func renderEntry(e *ledger.Entry) *ledgerv1.Entry {
	r := sideOf(e)
	r.TransferId, r.RecordTime = e.TransferID, timestamp(e.RecordedAt)
	if r.EffectiveTime = r.RecordTime; !e.EffectiveAt.IsZero() {
		r.EffectiveTime = timestamp(e.EffectiveAt)
	}
	return r
}

func sideOf(e *ledger.Entry) *ledgerv1.Entry {
	return &ledgerv1.Entry{Account: e.Account, Asset: e.Asset, Version: e.Version,
		Amount:        amount.Format(e.Amount, e.Scale),
		BalanceBefore: amount.Format(e.Before, e.Scale), BalanceAfter: amount.Format(e.After, e.Scale),
		Posting: int32(e.Posting)}
}

// renderTransfer shows a transfer. first shows it as it was when it was made: not reversed yet.
func renderTransfer(t *ledger.Transfer, first bool) *ledgerv1.Transfer {
	r := &ledgerv1.Transfer{Id: t.ID, BizNo: t.BizNo, Type: t.Type, Metadata: t.Metadata,
		Postings: make([]*ledgerv1.Posting, len(t.Entries)/2), Entries: make([]*ledgerv1.Entry, len(t.Entries)),
		RecordTime: timestamp(t.RecordedAt), ReversesId: t.ReversesID, HoldId: t.HoldID, RequestId: t.RequestID}
	if r.EffectiveTime = r.RecordTime; !t.EffectiveAt.IsZero() {
		r.EffectiveTime = timestamp(t.EffectiveAt)
	}
	if !first {
		r.ReversedById = t.ReversedByID
	}
	for i := range t.Entries {
		e := &t.Entries[i]
		x := sideOf(e)
		r.Entries[i] = x
		if i%2 == 1 {
			r.Postings[i/2] = &ledgerv1.Posting{From: t.Entries[i-1].Account, To: e.Account, Asset: e.Asset,
				Amount: x.Amount}
		}
	}
	return r
}

func renderHold(h *ledger.Hold) *ledgerv1.Hold {
	format := func(n amount.Int) string { return amount.Format(n, h.Scale) }
	return &ledgerv1.Hold{Id: h.ID, BizNo: h.BizNo, From: h.From, To: h.To, Asset: h.Asset, Amount: format(h.Amount),
		Captured: format(h.Captured), Remaining: format(h.Remaining()), State: holdStates[h.State],
		ExpireTime: timestamp(h.ExpiresAt), CreateTime: timestamp(h.CreatedAt), CloseTime: timestamp(h.ClosedAt),
		Metadata: h.Metadata, RequestId: h.RequestID}
}
