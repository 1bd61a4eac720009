package stock

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/paging"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/stock/internal/db"
)

// Reader reads committed stock, outside the engine. It is safe for concurrent use.
type Reader struct {
	pool *pgxpool.Pool
}

// NewReader reads over a pool.
func NewReader(pool *pgxpool.Pool) *Reader { return &Reader{pool} }

// Item returns an item with its counts. Returns fault ITEM_NOT_FOUND.
func (r *Reader) Item(ctx context.Context, k ItemKey) (Item, error) {
	row, err := q.ItemRead(ctx, pg.Planned{DB: r.pool}, db.ItemReadParams{TenantID: k.Tenant, Item: k.Item})
	if errors.Is(err, pgx.ErrNoRows) {
		return Item{}, itemNotFound(k.Item)
	}
	return itemOf(k.Tenant, db.ItemPageRow(row)), err
}

func itemOf(tenant int32, r db.ItemPageRow) Item {
	return Item{ItemKey{tenant, r.Item}, Details{Label: r.Label, Metadata: pg.Metadata(r.Metadata),
		CreatedAt: r.CreatedAt, ChangedAt: r.ChangedAt},
		Counts{r.Available, r.Reserved, r.Sold, r.Stocked}, int(r.Segments), r.Strategy}
}

// Page requests a part of a list: a size, or 0 for the default, and the token returned with the previous page.
type Page struct {
	Size  int
	Token string
}

// scanMax is how many reservations one page may read for a state that no index supports.
const scanMax = 50_000

// Items lists items whose names begin with a prefix, by name. Returns fault PAGE_TOKEN_INVALID.
func (r *Reader) Items(ctx context.Context, tenant int32, prefix string, page Page) ([]Item, string, error) {
	return paging.ReadNamed(paging.Of("items", tenant, prefix), page.Size, page.Token,
		func(after string, n int32) ([]db.ItemPageRow, error) {
			return q.ItemPage(ctx, pg.Planned{DB: r.pool}, db.ItemPageParams{TenantID: tenant, After: after,
				Prefix: prefix, Count: n})
		}, func(row *db.ItemPageRow) string { return row.Item },
		func(row *db.ItemPageRow) (Item, error) { return itemOf(tenant, *row), nil })
}

// Reservation returns a reservation as it counts now. Returns fault RESERVATION_NOT_FOUND.
func (r *Reader) Reservation(ctx context.Context, k ItemKey, no string) (Reservation, error) {
	row, err := q.ReservationGet(ctx, pg.Planned{DB: r.pool}, db.ReservationGetParams{TenantID: k.Tenant, Item: k.Item,
		ReservationNo: no})
	if errors.Is(err, pgx.ErrNoRows) {
		return Reservation{}, reservationNotFound(k.Item, no)
	}
	return reservationOf(k, db.ReservationPageRow(row)).at(row.Now), err
}

// Reservations lists the reservations of an item: all of them, or those in a state, by number; or the open ones, in the
// order in which they expire. A page reads a bounded number of reservations, so it may be short although a next token
// follows. Returns fault PAGE_TOKEN_INVALID.
func (r *Reader) Reservations(ctx context.Context, k ItemKey, state string, page Page) ([]Reservation, string, error) {
	if state == Reserved {
		return r.open(ctx, k, page)
	}
	l := paging.Of("reservations", k.Tenant, k.Item, state)
	place, err := l.After(page.Token, 1)
	if err != nil {
		return nil, "", err
	}
	after := ""
	if place != nil {
		after = place[0]
	}
	size := paging.Size(page.Size)
	var rows []db.ReservationPageRow
	next := ""
	err = pg.Snapshot(ctx, r.pool, func(d pg.DB) (err error) {
		rows, err = q.ReservationPage(ctx, d, db.ReservationPageParams{TenantID: k.Tenant, Item: k.Item, After: after,
			Scan: scanMax, OnlyState: state, Count: int32(size + 1)})
		if err != nil || len(rows) > size {
			return err
		}
		seen, err := q.ReservationPageEnd(ctx, d, db.ReservationPageEndParams{TenantID: k.Tenant, Item: k.Item,
			After: after, Scan: scanMax})
		if seen.Scanned == scanMax {
			next = l.Token(seen.Last)
		}
		return err
	})
	if len(rows) > size {
		rows = rows[:size]
		next = l.Token(rows[size-1].ReservationNo)
	}
	return reservationsOf(k, rows), next, err
}

// open lists open reservations, by the time of the snapshot.
func (r *Reader) open(ctx context.Context, k ItemKey, page Page) ([]Reservation, string, error) {
	l := paging.Of("open reservations", k.Tenant, k.Item)
	place, err := l.After(page.Token, 2)
	if err != nil {
		return nil, "", err
	}
	var after time.Time
	no := ""
	if place != nil {
		if after, err = time.Parse(time.RFC3339Nano, place[0]); err != nil {
			return nil, "", err // the token is bound to its text, which is ours
		}
		no = place[1]
	}
	size := paging.Size(page.Size)
	var rows []db.ReservationPageRow
	err = pg.Snapshot(ctx, r.pool, func(d pg.DB) error {
		found, err := q.ReservationPageOpen(ctx, d, db.ReservationPageOpenParams{TenantID: k.Tenant, Item: k.Item,
			After: after, AfterNo: no, Count: int32(size + 1)})
		for _, row := range found {
			rows = append(rows, db.ReservationPageRow(row))
		}
		return err
	})
	next := ""
	if len(rows) > size {
		rows = rows[:size]
		last := rows[size-1]
		next = l.Token(pg.OrZero(last.ExpiresAt).Format(time.RFC3339Nano), last.ReservationNo)
	}
	return reservationsOf(k, rows), next, err
}

func reservationsOf(k ItemKey, rows []db.ReservationPageRow) []Reservation {
	all := make([]Reservation, len(rows))
	for n, row := range rows {
		all[n] = reservationOf(k, row).at(row.Now)
	}
	return all
}
