package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/machine/internal/db"
	"github.com/ledgerd/ledgerd/internal/paging"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Reader serves reads from committed rows, without locks. It is safe for concurrent use.
type Reader struct{ pool *pgxpool.Pool }

// NewReader makes a Reader on the server's own pool.
func NewReader(pool *pgxpool.Pool) *Reader { return &Reader{pool} }

// Machine returns a version of a machine, or the newest for 0. Returns fault MACHINE_NOT_FOUND.
func (r *Reader) Machine(ctx context.Context, n Name, version int32) (Version, error) {
	arg := db.MachineGetParams{TenantID: n.Tenant, Machine: n.Machine, First: version, Last: version}
	if version == 0 {
		arg.Last = math.MaxInt32
	}
	row, err := q.MachineGet(ctx, pg.Planned{DB: r.pool}, arg)
	if errors.Is(err, pgx.ErrNoRows) {
		if version > 0 {
			return Version{}, NotFound.New("there is no version %d of machine %s", version, n.Machine).
				With("machine", n.Machine).With("version", version).
				WithField("version", "must be a version of the machine")
		}
		return Version{}, notFound(n)
	}
	if err != nil {
		return Version{}, err
	}
	return versionOf(n, db.MachinePageRow{Version: row.Version, Definition: row.Definition, Principal: row.Principal,
		RequestID: row.RequestID, CreatedAt: row.CreatedAt})
}

// maxMachines bounds a page: each machine may have maxDefinition bytes.
const maxMachines = 20

// Machines lists machines, each in its newest version, by name. Returns fault PAGE_TOKEN_INVALID.
func (r *Reader) Machines(ctx context.Context, tenant int32, size int, token string) ([]Version, string, error) {
	return paging.ReadNamed(paging.Of("machines", tenant), min(paging.Size(size), maxMachines), token,
		func(after string, n int32) ([]db.MachinePageRow, error) {
			return pg.FromSnapshot(ctx, r.pool, func(d pg.DB) ([]db.MachinePageRow, error) {
				return q.MachinePage(ctx, d, db.MachinePageParams{TenantID: tenant, After: after, Count: n})
			})
		}, func(row *db.MachinePageRow) string { return row.Machine },
		func(row *db.MachinePageRow) (Version, error) { return versionOf(Name{tenant, row.Machine}, *row) })
}

func versionOf(n Name, r db.MachinePageRow) (Version, error) {
	v := Version{Name: n, Number: r.Version, Definition: new(Definition), Principal: r.Principal,
		RequestID: r.RequestID, CreatedAt: r.CreatedAt}
	if err := json.Unmarshal(r.Definition, v.Definition); err != nil {
		return Version{}, fmt.Errorf("read a machine: %w", err)
	}
	return v, nil
}

// Instance returns an instance as it counts now. Returns fault INSTANCE_NOT_FOUND.
func (r *Reader) Instance(ctx context.Context, k Key) (Instance, error) {
	return instanceGet(ctx, pg.Planned{DB: r.pool}, k)
}

func instanceGet(ctx context.Context, d db.DBTX, k Key) (Instance, error) {
	row, err := q.InstanceGet(ctx, d, db.InstanceGetParams{TenantID: k.Tenant, Machine: k.Machine, Key: k.Key})
	if errors.Is(err, pgx.ErrNoRows) {
		return Instance{}, instanceNotFound(k)
	}
	return instanceOf(k.Tenant, db.InstancePageRow(row)), err
}

// instanceOf converts a row to an instance as it counts at the time of the read.
func instanceOf(tenant int32, r db.InstancePageRow) Instance {
	return Instance{Key: Key{tenant, r.Machine, r.Key}, ID: r.InstanceID, Version: r.Version, State: r.State,
		CameFrom: r.CameFrom, Revision: r.Revision, Cause: r.Cause, Owner: pg.OrZero(r.Owner),
		OwnTimer: pg.Milliseconds(pg.OrZero(r.TimerMs)), TimerAt: pg.OrZero(r.TimerAt),
		TimerTo: pg.OrZero(r.TimerTo), CreatedAt: r.CreatedAt, ChangedAt: r.ChangedAt}.At(r.Now)
}

// Filter selects instances of a machine. Empty texts match all.
type Filter struct{ Machine, State, Owner string }

// Instances lists instances: by key, or with a state or an owner by id. Returns fault PAGE_TOKEN_INVALID.
func (r *Reader) Instances(ctx context.Context, tenant int32, f Filter, size int, token string) ([]Instance, string,
	error) {
	pages := paging.Of("instances", tenant, f.Machine, f.State, f.Owner)
	convert := func(row *db.InstancePageRow) (Instance, error) { return instanceOf(tenant, *row), nil }
	if f.State == "" && f.Owner == "" {
		return paging.ReadNamed(pages, size, token,
			func(after string, n int32) ([]db.InstancePageRow, error) {
				return pg.FromSnapshot(ctx, r.pool, func(d pg.DB) ([]db.InstancePageRow, error) {
					return q.InstancePage(ctx, d, db.InstancePageParams{TenantID: tenant, Machine: f.Machine,
						After: after, Count: n})
				})
			}, func(row *db.InstancePageRow) string { return row.Key }, convert)
	}
	return paging.ReadNumbered(pages, size, token, 0,
		func(after int64, n int32) ([]db.InstancePageRow, error) {
			return pg.FromSnapshot(ctx, r.pool, func(d pg.DB) ([]db.InstancePageRow, error) {
				return f.page(ctx, d, tenant, after, n)
			})
		}, func(row *db.InstancePageRow) int64 { return row.InstanceID }, convert)
}

// page reads instances of a state or an owner.
func (f Filter) page(ctx context.Context, d pg.DB, tenant int32, after int64, n int32) (rows []db.InstancePageRow,
	err error) {
	if f.Owner != "" {
		found, err := q.InstancePageOfOwner(ctx, d, db.InstancePageOfOwnerParams{TenantID: tenant, Machine: f.Machine,
			Owner: f.Owner, State: f.State, After: after, Count: n})
		for _, row := range found {
			rows = append(rows, db.InstancePageRow(row))
		}
		return rows, err
	}
	found, err := q.InstancePageOfState(ctx, d, db.InstancePageOfStateParams{TenantID: tenant, Machine: f.Machine,
		State: f.State, After: after, Count: n})
	for _, row := range found {
		rows = append(rows, db.InstancePageRow(row))
	}
	return rows, err
}

// Entry is one move of an instance, or its creation.
type Entry struct {
	Revision             int64
	From, To             string // From is empty for the creation
	Actor                Actor
	Cause, Reason        string
	Inputs               map[string]string
	Principal, RequestID string // Principal is empty for a timer
	RecordedAt           time.Time
}

// History lists the recorded moves of an instance. Returns faults INSTANCE_NOT_FOUND and PAGE_TOKEN_INVALID.
func (r *Reader) History(ctx context.Context, k Key, size int, token string) ([]Entry, string, error) {
	return paging.ReadNumbered(paging.Of("history", k.Tenant, k.Machine, k.Key), size, token, 0,
		func(after int64, n int32) ([]db.HistoryPageRow, error) {
			return pg.FromSnapshot(ctx, r.pool, func(d pg.DB) ([]db.HistoryPageRow, error) {
				i, err := instanceGet(ctx, d, k)
				if err != nil {
					return nil, err
				}
				return q.HistoryPage(ctx, d, db.HistoryPageParams{TenantID: k.Tenant, InstanceID: i.ID, After: after,
					Count: n})
			})
		}, func(row *db.HistoryPageRow) int64 { return row.Revision }, entryOf)
}

func entryOf(row *db.HistoryPageRow) (Entry, error) {
	e := Entry{Revision: row.Revision, From: row.FromState, To: row.ToState, Actor: Actor(row.Actor),
		Cause: row.Cause, Reason: pg.OrZero(row.Reason), Principal: pg.OrZero(row.Principal),
		RequestID: row.RequestID, RecordedAt: row.RecordedAt}
	if row.Inputs != nil {
		if err := json.Unmarshal(row.Inputs, &e.Inputs); err != nil {
			return Entry{}, fmt.Errorf("read the inputs of a move: %w", err)
		}
	}
	return e, nil
}
