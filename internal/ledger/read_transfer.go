package ledger

import (
	"context"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/ledgerd/ledgerd/internal/ledger/internal/db"
	"github.com/ledgerd/ledgerd/internal/paging"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Transfer returns a transfer by id or, if id is 0, by biz_no. Returns fault TRANSFER_NOT_FOUND.
func (r *Reader) Transfer(ctx context.Context, tenant int32, id int64, bizNo string) (*Transfer, error) {
	if id != 0 {
		all, err := r.TransfersByID(ctx, tenant, []int64{id})
		if err != nil {
			return nil, err
		}
		return all[0], nil
	}
	var found []*Transfer
	err := pg.Snapshot(ctx, r.pool, func(d pg.DB) error {
		rows, err := q.TransferLookup(ctx, d,
			db.TransferLookupParams{Tenants: []int32{tenant}, BizNos: []string{bizNo}})
		if err != nil {
			return err
		}
		for _, row := range rows {
			found = append(found, transferOf(tenant,
				db.TransferPageRow{TransferID: row.TransferID, BizNo: bizNo, Type: row.Type,
					RecordedAt: row.RecordedAt, EffectiveAt: row.EffectiveAt, ReversesID: row.ReversesID,
					HoldID: row.HoldID,
					Forms:  row.Forms, Metadata: row.Metadata, RequestID: row.RequestID}))
		}
		return complete(ctx, d, found)
	})
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, transferNotFound("transfer_biz_no", bizNo)
	}
	return found[0], nil
}

// TransfersByID returns transfers in the order of their ids. All fields except ReversedByID are immutable, so a
// recorded answer must omit that field. Returns fault TRANSFER_NOT_FOUND if one is missing.
func (r *Reader) TransfersByID(ctx context.Context, tenant int32, ids []int64) ([]*Transfer, error) {
	transfers := make([]*Transfer, len(ids))
	err := pg.Snapshot(ctx, r.pool, func(d pg.DB) error {
		rows, err := q.TransferLookupByID(ctx, d,
			db.TransferLookupByIDParams{Tenants: repeat(tenant, len(ids)), TransferIds: ids})
		if err != nil {
			return err
		}
		for _, row := range rows {
			transfers[row.N-1] = transferOf(tenant,
				db.TransferPageRow{TransferID: ids[row.N-1], BizNo: row.BizNo, Type: row.Type,
					RecordedAt: row.RecordedAt, EffectiveAt: row.EffectiveAt, ReversesID: row.ReversesID,
					HoldID: row.HoldID,
					Forms:  row.Forms, Metadata: row.Metadata, RequestID: row.RequestID})
		}
		if i := slices.Index(transfers, nil); i >= 0 {
			return transferNotFound("transfer_id", ids[i])
		}
		return complete(ctx, d, transfers)
	})
	if err != nil {
		return nil, err
	}
	return transfers, nil
}

// TransferFilter selects transfers. Zero values match everything.
type TransferFilter struct {
	Type     string
	Metadata map[string]string // contains these pairs
	From     time.Time         // recorded at or after
	Before   time.Time         // recorded before
}

// Transfers lists transfers by descending id. A page examines a bounded number of transfers, so a page may be
// short although a next token follows. Returns fault PAGE_TOKEN_INVALID.
func (r *Reader) Transfers(ctx context.Context, tenant int32, f TransferFilter,
	page Page) ([]*Transfer, string, error) {
	metadata := pg.JSONOrEmpty(f.Metadata)
	l := paging.Of("transfers", tenant, f.Type, string(metadata), timeText(f.From), timeText(f.Before))
	before, err := l.AfterNumber(page.Token, math.MaxInt64)
	if err != nil {
		return nil, "", err
	}
	size := page.size()
	start, end := span(f.From, f.Before)
	var transfers []*Transfer
	next := ""
	err = pg.Snapshot(ctx, r.pool, func(d pg.DB) error {
		before, err := f.reach(ctx, d, before)
		if err != nil || before == 0 {
			return err
		}
		rows, err := q.TransferPage(ctx, d,
			db.TransferPageParams{TenantID: tenant, Before: before, Scan: scanMax, OnlyType: f.Type,
				StartAt: start, EndAt: end, OnlyMetadata: metadata, Count: int32(size + 1)})
		if err != nil {
			return err
		}
		if len(rows) > size {
			rows = rows[:size]
			next = l.TokenNumber(rows[size-1].TransferID)
		} else if seen, err := q.TransferPageEnd(ctx, d,
			db.TransferPageEndParams{TenantID: tenant, Before: before, Scan: scanMax}); err != nil {
			return err
		} else if seen.Scanned == scanMax {
			rest, err := f.reach(ctx, d, seen.Last)
			if err != nil {
				return err
			}
			if rest > 0 {
				next = l.TokenNumber(rest)
			}
		}
		for _, row := range rows {
			transfers = append(transfers, transferOf(tenant, row))
		}
		n, err := completeSome(ctx, d, transfers)
		if n < len(transfers) {
			transfers = transfers[:n]
			next = l.TokenNumber(transfers[n-1].ID)
		}
		return err
	})
	if err != nil {
		return nil, "", err
	}
	return transfers, next, nil
}

// reach skips batches outside the filter's time range: it lowers a list position to the end of the next batch
// within the range, or to 0 if there is none.
func (f *TransferFilter) reach(ctx context.Context, d db.DBTX, before int64) (int64, error) {
	if f.From.IsZero() && f.Before.IsZero() {
		return before, nil
	}
	start, end := span(f.From, f.Before)
	batch, err := q.TransferBatchBefore(ctx, d,
		db.TransferBatchBeforeParams{Below: (before-1)>>14 + 1, StartAt: start, EndAt: end})
	if err != nil || batch == 0 {
		return 0, err
	}
	return min(before, (batch+1)<<14), nil
}

func transferOf(tenant int32, r db.TransferPageRow) *Transfer {
	return &Transfer{Tenant: tenant, ID: r.TransferID, BizNo: r.BizNo, Type: r.Type, RecordedAt: r.RecordedAt,
		EffectiveAt: pg.OrZero(r.EffectiveAt), ReversesID: pg.OrZero(r.ReversesID), HoldID: pg.OrZero(r.HoldID),
		Forms:    pg.OrZero(r.Forms),
		Metadata: pg.Metadata(r.Metadata), RequestID: r.RequestID}
}

// entriesMax is the approximate number of entries on a page; a single transfer may have 2,000.
const entriesMax = 10_000

// completeSome loads the entries of the first transfers, as many as fit on a page, and returns their number.
func completeSome(ctx context.Context, d db.DBTX, transfers []*Transfer) (n int, err error) {
	for entries, some := 0, 10; n < len(transfers) && some > 0; {
		part := transfers[n:min(n+some, len(transfers))]
		if err := complete(ctx, d, part); err != nil {
			return n, err
		}
		n += len(part)
		for _, t := range part {
			entries += len(t.Entries)
		}
		some = (entriesMax - entries) * n / max(entries, 1) // the estimated number that still fits
	}
	return n, nil
}

// complete loads the entries of transfers and their reversals.
func complete(ctx context.Context, d db.DBTX, transfers []*Transfer) error {
	if len(transfers) == 0 {
		return nil
	}
	arg := db.EntryLookupParams{Tenants: repeat(transfers[0].Tenant, len(transfers)),
		Most: make([]int32, len(transfers))}
	for _, t := range transfers {
		arg.TransferIds = append(arg.TransferIds, t.ID)
	}
	entries, err := q.EntryLookup(ctx, d, arg)
	if err != nil {
		return err
	}
	for _, e := range entries {
		t := transfers[e.N-1]
		t.complete = true
		t.Entries = append(t.Entries, Entry{AccountID: e.AccountID, Account: e.Code, Asset: e.Asset,
			Scale:   uint8(e.Scale),
			Version: e.Version, TransferID: t.ID, Posting: e.Posting, Amount: e.Amount, Before: e.BalanceBefore,
			After: e.BalanceAfter, RecordedAt: e.RecordedAt, EffectiveAt: pg.OrZero(e.EffectiveAt)})
	}
	reversals, err := q.ReversalLookup(ctx, d,
		db.ReversalLookupParams{Tenants: arg.Tenants, TransferIds: arg.TransferIds})
	for _, r := range reversals {
		transfers[r.N-1].ReversedByID = r.TransferID
	}
	return err
}

func repeat(tenant int32, n int) []int32 {
	return slices.Repeat([]int32{tenant}, n)
}

// timeText is the form of a time to which tokens are bound.
func timeText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return strconv.FormatInt(t.Unix(), 10) + "." + strconv.Itoa(t.Nanosecond())
}
