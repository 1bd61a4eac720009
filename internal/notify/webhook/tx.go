package webhook

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/notify/webhook/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

var q = db.New()

// stored is a row of notify_endpoints in a batch.
type stored struct {
	Endpoint
	tid     pgtype.TID
	slot    int16
	deleted bool
}

type (
	row  = commit.Row[Key, stored]
	rows = commit.Rows[Key, stored]
)

// Tx holds the endpoints of one batch and is their commit.Participant.
type Tx struct {
	rows
	all   map[int32]*All
	slots map[int32][]int16 // used slots of each tenant in which the batch creates endpoints
}

var table = commit.NewKeyOrder[Key, stored](compareKeys)

// NewTx returns an empty transaction.
func NewTx() *Tx { return &Tx{rows: table.Rows()} }

// NameConstraints returns the unique constraints whose violation means that the batch has to run again.
func NameConstraints() []string {
	return []string{"notify_endpoints_pkey", "notify_endpoints_slot_key"}
}

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Name, b.Name))
}

// CanOverlap is true for batches that only publish events: the subscribed endpoints are read without locks.
func (tx *Tx) CanOverlap() bool { return len(tx.Sorted()) == 0 }

// Lock locks and loads the endpoints.
func (tx *Tx) Lock(p *commit.Pipe) {
	rows := tx.Sorted()
	if len(rows) == 0 {
		return
	}
	var arg db.EndpointLockParams
	for _, r := range rows {
		arg.Tenants = append(arg.Tenants, r.Key.Tenant)
		arg.Names = append(arg.Names, r.Key.Name)
	}
	tx.readSlots(p)
	p.Queue(func(d commit.DB) error {
		found, err := q.EndpointLock(p.Context(), d, arg)
		for _, f := range found {
			r := rows[f.N-1]
			tx.Load(r, stored{tid: f.Ctid, slot: f.Slot,
				Endpoint: endpointOf(r.Key, db.EndpointGetRow{EndpointID: f.EndpointID, Url: f.Url, Types: f.Types,
					Description: f.Description, DisabledFor: f.DisabledFor, DisabledAt: f.DisabledAt,
					SecretVersion:     f.SecretVersion,
					PreviousExpiresAt: f.PreviousExpiresAt, FailingSince: f.FailingSince, FailedAt: f.FailedAt,
					CreatedAt: f.CreatedAt, ChangedAt: f.ChangedAt, Principal: f.Principal,
					RequestID: f.RequestID})})
		}
		return err
	})
}

// readSlots reads the slots of the tenants in which endpoints are created.
func (tx *Tx) readSlots(p *commit.Pipe) {
	if len(tx.slots) == 0 {
		return
	}
	tenants := slices.Sorted(maps.Keys(tx.slots))
	p.Queue(func(d commit.DB) error {
		found, err := q.EndpointSlots(p.Context(), d, tenants)
		for _, f := range found {
			tx.slots[tenants[f.N-1]] = append(tx.slots[tenants[f.N-1]], f.Slot)
		}
		return err
	})
}

// freeSlot returns the lowest free slot of a tenant, or fault WEBHOOK_ENDPOINTS_FULL. The slot of an endpoint that the
// batch deletes becomes free with the next batch.
func (tx *Tx) freeSlot(tenant int32) (int16, error) {
	var taken [MaxEndpoints + 1]bool
	for _, slot := range tx.slots[tenant] {
		taken[slot] = true
	}
	for _, r := range tx.Sorted() {
		if r.Key.Tenant == tenant && r.Exists {
			taken[r.Value.slot] = true
		}
	}
	for slot := int16(1); slot <= MaxEndpoints; slot++ {
		if !taken[slot] {
			return slot, nil
		}
	}
	return 0, Full.New("a tenant has at most %d webhook endpoints", MaxEndpoints).With("max_endpoints", MaxEndpoints).
		WithField("name", "delete an endpoint first")
}

// live returns the endpoint of a row; ok is false if there is none.
func (tx *Tx) live(r *row) (*Endpoint, bool) { return &r.Value.Endpoint, r.Exists && !r.Value.deleted }

// found returns the endpoint of a row, or fault WEBHOOK_ENDPOINT_NOT_FOUND.
func (tx *Tx) found(r *row) (*Endpoint, error) {
	e, ok := tx.live(r)
	if !ok {
		return nil, notFound(r.Key)
	}
	return e, nil
}

func notFound(k Key) error {
	return NotFound.New("there is no webhook endpoint %s", k.Name).With("name", k.Name).
		WithField("name", "must be the name of an endpoint that exists")
}

// change returns the endpoint of a row for changing.
func (tx *Tx) change(r *row) *Endpoint { return &tx.Change(r).Endpoint }

// stamp sets time and caller of a change.
func (tx *Tx) stamp(e *Endpoint, by commit.Caller) {
	e.ChangedAt, e.Principal, e.RequestID = tx.Now, by.Principal, by.RequestID
}

// Flush writes endpoints.
func (tx *Tx) Flush(p *commit.Pipe) {
	var fresh, changed []*row
	var dropped []pgtype.TID
	for _, r := range tx.Fresh() {
		if !r.Value.deleted {
			fresh = append(fresh, r)
		}
	}
	for _, r := range tx.Changed() {
		if r.Value.deleted {
			dropped = append(dropped, r.Value.tid)
		} else {
			changed = append(changed, r)
		}
	}
	if len(dropped) > 0 {
		p.Queue(func(d commit.DB) error { return q.EndpointDrop(p.Context(), d, dropped) })
	}
	if len(changed) > 0 {
		arg := columns(changed)
		tids := make([]pgtype.TID, len(changed))
		for i, r := range changed {
			tids[i] = r.Value.tid
		}
		p.Queue(func(d commit.DB) error {
			return q.EndpointUpdate(p.Context(), d,
				db.EndpointUpdateParams{Tids: tids, EndpointIds: arg.EndpointIds, Urls: arg.Urls, Types: arg.Types,
					Descriptions: arg.Descriptions, DisabledFor: arg.DisabledFor, DisabledAt: arg.DisabledAt,
					SecretVersions:    arg.SecretVersions,
					PreviousExpiresAt: arg.PreviousExpiresAt, FailingSince: arg.FailingSince, FailedAt: arg.FailedAt,
					CreatedAt: arg.CreatedAt, ChangedAt: arg.ChangedAt,
					Principals: arg.Principals, RequestIds: arg.RequestIds})
		})
	}
	if len(fresh) > 0 {
		arg := columns(fresh)
		p.Queue(func(d commit.DB) error { return q.EndpointInsert(p.Context(), d, arg) })
	}
}

func columns(rows []*row) (arg db.EndpointInsertParams) {
	for _, r := range rows {
		e := &r.Value.Endpoint
		arg.Tenants = append(arg.Tenants, e.Tenant)
		arg.Names = append(arg.Names, e.Name)
		arg.EndpointIds = append(arg.EndpointIds, e.ID)
		arg.Slots = append(arg.Slots, r.Value.slot)
		arg.Urls = append(arg.Urls, e.URL)
		arg.Types = append(arg.Types, strings.Join(e.Types, ","))
		arg.Descriptions = append(arg.Descriptions, e.Description)
		arg.DisabledFor = append(arg.DisabledFor, e.Disabled)
		arg.DisabledAt = append(arg.DisabledAt, e.DisabledAt)
		arg.SecretVersions = append(arg.SecretVersions, e.Version)
		arg.PreviousExpiresAt = append(arg.PreviousExpiresAt, e.PreviousExpiresAt)
		arg.FailingSince = append(arg.FailingSince, e.FailingSince)
		arg.FailedAt = append(arg.FailedAt, e.FailedAt)
		arg.CreatedAt = append(arg.CreatedAt, e.CreatedAt)
		arg.ChangedAt = append(arg.ChangedAt, e.ChangedAt)
		arg.Principals = append(arg.Principals, e.Principal)
		arg.RequestIds = append(arg.RequestIds, e.RequestID)
	}
	return arg
}

func endpointOf(k Key, r db.EndpointGetRow) Endpoint {
	e := Endpoint{Key: k, ID: r.EndpointID, URL: r.Url, Description: r.Description, DisabledAt: pg.OrZero(r.DisabledAt),
		Version: r.SecretVersion, PreviousExpiresAt: pg.OrZero(r.PreviousExpiresAt),
		FailingSince: pg.OrZero(r.FailingSince), FailedAt: pg.OrZero(r.FailedAt),
		CreatedAt: r.CreatedAt, ChangedAt: r.ChangedAt, Principal: r.Principal, RequestID: r.RequestID}
	if r.Types != "" {
		e.Types = strings.Split(r.Types, ",")
	}
	if r.DisabledFor != nil {
		e.Disabled = *r.DisabledFor
	}
	return e
}
