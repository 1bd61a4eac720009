package ledger

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/ledger/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Discover finds the accounts of the holds to capture and of the transfers to reverse, through
// columns that never change. What it misses is found missing again under the locks, or makes the
// batch run again.
func (tx *Tx) Discover(p *commit.Pipe) {
	tx.loadHolds(p, func(h *Hold, wants holdWants) {
		tx.account(h.Tenant, h.From, h.Asset)
		for _, code := range wants.to {
			if code = cmp.Or(code, h.To); code != "" {
				tx.account(h.Tenant, code, h.Asset)
			}
		}
	}, true)
	if len(tx.transferRefs) > 0 {
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
	var arg db.TransferDiscoverParams
	for _, n := range tx.nameList {
		if n.reverse {
			arg.Tenants = append(arg.Tenants, n.tenant)
			arg.BizNos = append(arg.BizNos, n.bizNo)
		}
	}
	if len(arg.BizNos) > 0 {
		p.Queue(func(d commit.DB) error {
			rows, err := q.TransferDiscover(p.Context(), d, arg)
			for _, r := range rows {
				tx.account(arg.Tenants[r.N-1], r.Code, r.Asset)
			}
			return err
		})
	}
}

// Lookup reads assets, names, and the holds and transfers that commands are about.
func (tx *Tx) Lookup(p *commit.Pipe) {
	tx.lookupAssets(p)
	tx.lookupTransfers(p)
	tx.loadHolds(p, nil, false)
}

func (tx *Tx) lookupAssets(p *commit.Pipe) {
	if len(tx.assetList) == 0 {
		return
	}
	var arg db.AssetLookupParams
	for _, a := range tx.assetList {
		arg.Tenants = append(arg.Tenants, a.Tenant)
		arg.Codes = append(arg.Codes, a.Code)
	}
	p.Queue(func(d commit.DB) error {
		rows, err := q.AssetLookup(p.Context(), d, arg)
		for _, r := range rows {
			a := tx.assetList[r.N-1]
			a.found, a.Scale, a.CreatedAt = true, uint8(r.Scale), r.CreatedAt
		}
		return err
	})
}

func (tx *Tx) lookupTransfers(p *commit.Pipe) {
	if n := len(tx.nameList); n > 0 {
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
					RecordedAt: r.RecordedAt.UTC(), EffectiveAt: pg.OrZero(r.EffectiveAt),
					ReversesID: pg.OrZero(r.ReversesID),
					HoldID:     pg.OrZero(r.HoldID), Forms: pg.OrZero(r.Forms), Metadata: readMetadata(r.Metadata),
					RequestID: r.RequestID}
			}
			return err
		})
	}
	if len(tx.transferRefs) == 0 {
		return
	}
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
				RecordedAt: r.RecordedAt.UTC(), EffectiveAt: pg.OrZero(r.EffectiveAt),
				ReversesID: pg.OrZero(r.ReversesID),
				HoldID:     pg.OrZero(r.HoldID), Forms: pg.OrZero(r.Forms), Metadata: readMetadata(r.Metadata),
				RequestID: r.RequestID}
			if n := tx.transferNames[nameKey{ref.tenant, r.BizNo}]; n != nil && n.t != nil {
				ref.t = n.t // one object a transfer
			}
		}
		return err
	})
}

// loadHolds reads the holds that are wanted, by name and by id. Before the locks only those whose
// accounts are to be found; each is handed to found instead of being kept.
func (tx *Tx) loadHolds(p *commit.Pipe, found func(*Hold, holdWants), discover bool) {
	var names []*holdName
	var byName db.HoldLookupParams
	for _, n := range tx.holdNames {
		if discover && !n.account {
			continue
		}
		names = append(names, n)
		byName.Tenants = append(byName.Tenants, n.tenant)
		byName.BizNos = append(byName.BizNos, n.bizNo)
	}
	if len(names) > 0 {
		p.Queue(func(d commit.DB) error {
			rows, err := q.HoldLookup(p.Context(), d, byName)
			for _, r := range rows {
				n := names[r.N-1]
				h := holdOf(n.tenant, n.bizNo,
					db.HoldLookupByIDRow{N: r.N, BizNo: n.bizNo, AccountID: r.AccountID, Code: r.Code,
						Asset: r.Asset, Scale: r.Scale, ToCode: r.ToCode, Form: r.Form, Amount: r.Amount,
						Captured: r.Captured,
						State:    r.State, LifeMs: r.LifeMs, ExpiresAt: r.ExpiresAt, CreatedAt: r.CreatedAt,
						ClosedAt: r.ClosedAt,
						Metadata: r.Metadata, RequestID: r.RequestID}, r.HoldID)
				if found != nil {
					found(h, n.holdWants)
					continue
				}
				n.h = tx.keepHold(h)
			}
			return err
		})
	}
	var refs []*holdRef
	var byID db.HoldLookupByIDParams
	for _, r := range tx.holdRefs {
		refs = append(refs, r)
		byID.Tenants = append(byID.Tenants, r.tenant)
		byID.HoldIds = append(byID.HoldIds, r.id)
	}
	if len(refs) == 0 {
		return
	}
	p.Queue(func(d commit.DB) error {
		rows, err := q.HoldLookupByID(p.Context(), d, byID)
		for _, row := range rows {
			r := refs[row.N-1]
			h := holdOf(r.tenant, row.BizNo, row, r.id)
			if found != nil {
				found(h, r.holdWants)
				continue
			}
			r.h = tx.keepHold(h)
		}
		return err
	})
}

func holdOf(tenant int32, bizNo string, r db.HoldLookupByIDRow, id int64) *Hold {
	return &Hold{Tenant: tenant, ID: id, BizNo: bizNo, AccountID: r.AccountID, From: r.Code, Asset: r.Asset,
		Scale: uint8(r.Scale), To: r.ToCode, Form: pg.OrZero(r.Form), Amount: r.Amount, Captured: r.Captured,
		State: r.State,
		Life:  time.Duration(r.LifeMs) * time.Millisecond, ExpiresAt: r.ExpiresAt.UTC(), CreatedAt: r.CreatedAt.UTC(),
		ClosedAt: pg.OrZero(r.ClosedAt), Metadata: readMetadata(r.Metadata), RequestID: r.RequestID}
}

// keepHold makes one object a hold, however often it was loaded.
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

func readMetadata(b []byte) map[string]string {
	if len(b) == 0 {
		return nil
	}
	var m map[string]string
	if json.Unmarshal(b, &m) != nil {
		return nil // not written by us: shown as none
	}
	return m
}

func writeMetadata(m map[string]string) []byte {
	if len(m) == 0 {
		return nil
	}
	b, err := json.Marshal(m)
	if err != nil {
		panic(err) // a map of strings always encodes
	}
	return b
}
