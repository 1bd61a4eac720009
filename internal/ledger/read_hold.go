package ledger

import (
	"context"
	"math"

	"github.com/ledgerd/ledgerd/internal/ledger/internal/db"
	"github.com/ledgerd/ledgerd/internal/paging"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Hold returns a hold by id or, if id is 0, by biz_no, as recorded: a hold past its expiry stays held until the
// next commit on its account or the scheduler makes it expire. Returns fault HOLD_NOT_FOUND.
func (r *Reader) Hold(ctx context.Context, tenant int32, id int64, bizNo string) (*Hold, error) {
	if id != 0 {
		rows, err := q.HoldLookupByID(ctx, r.one(),
			db.HoldLookupByIDParams{Tenants: []int32{tenant}, HoldIds: []int64{id}})
		if err != nil {
			return nil, err
		}
		if len(rows) == 0 {
			return nil, holdNotFound("hold_id", id)
		}
		return holdOf(tenant, rows[0].BizNo, rows[0], id), nil
	}
	rows, err := q.HoldLookup(ctx, r.one(), db.HoldLookupParams{Tenants: []int32{tenant}, BizNos: []string{bizNo}})
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, holdNotFound("hold_biz_no", bizNo)
	}
	h := rows[0]
	return holdOfPage(tenant, db.HoldPageRow{HoldID: h.HoldID, BizNo: bizNo, AccountID: h.AccountID, Code: h.Code,
		Asset: h.Asset,
		Scale: h.Scale, ToCode: h.ToCode, Form: h.Form, Amount: h.Amount, Captured: h.Captured, State: h.State,
		LifeMs:    h.LifeMs,
		ExpiresAt: h.ExpiresAt, CreatedAt: h.CreatedAt, ClosedAt: h.ClosedAt, Metadata: h.Metadata,
		RequestID: h.RequestID}), nil
}

// HoldFilter selects holds. Zero values match everything.
type HoldFilter struct {
	From  string // account code
	State string
}

// Holds lists holds, newest first. A page examines a bounded number of holds, so a page may be short although a
// next token follows. Returns fault PAGE_TOKEN_INVALID.
func (r *Reader) Holds(ctx context.Context, tenant int32, f HoldFilter, page Page) ([]*Hold, string, error) {
	l := paging.Of("holds", tenant, f.From, f.State)
	before, err := l.AfterNumber(page.Token, math.MaxInt64)
	if err != nil {
		return nil, "", err
	}
	size := page.size()
	var rows []db.HoldPageRow
	next := ""
	err = pg.Snapshot(ctx, r.pool, func(d pg.DB) (err error) {
		if f.From != "" && f.State == Held {
			open, err := q.HoldPageOpen(ctx, d,
				db.HoldPageOpenParams{TenantID: tenant, Before: before, OnlyFrom: f.From, Count: int32(size + 1)})
			for _, row := range open {
				rows = append(rows, db.HoldPageRow(row))
			}
			return err
		}
		rows, err = q.HoldPage(ctx, d, db.HoldPageParams{TenantID: tenant, Before: before, Scan: scanMax,
			OnlyFrom:  f.From,
			OnlyState: f.State, Count: int32(size + 1)})
		if err != nil || len(rows) > size {
			return err
		}
		seen, err := q.HoldPageEnd(ctx, d, db.HoldPageEndParams{TenantID: tenant, Before: before, Scan: scanMax})
		if seen.Scanned == scanMax {
			next = l.TokenNumber(seen.Last)
		}
		return err
	})
	if err != nil {
		return nil, "", err
	}
	if len(rows) > size {
		rows = rows[:size]
		next = l.TokenNumber(rows[size-1].HoldID)
	}
	holds := make([]*Hold, 0, len(rows))
	for _, row := range rows {
		holds = append(holds, holdOfPage(tenant, row))
	}
	return holds, next, nil
}

func holdOfPage(tenant int32, r db.HoldPageRow) *Hold {
	return holdOf(tenant, r.BizNo, db.HoldLookupByIDRow{BizNo: r.BizNo, AccountID: r.AccountID, Code: r.Code,
		Asset: r.Asset,
		Scale: r.Scale, ToCode: r.ToCode, Form: r.Form, Amount: r.Amount, Captured: r.Captured, State: r.State,
		LifeMs:    r.LifeMs,
		ExpiresAt: r.ExpiresAt, CreatedAt: r.CreatedAt, ClosedAt: r.ClosedAt, Metadata: r.Metadata,
		RequestID: r.RequestID}, r.HoldID)
}
