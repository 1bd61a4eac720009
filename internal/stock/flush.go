package stock

import (
	"slices"
	"strconv"
	"strings"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/stock/internal/db"
)

// Flush writes the changes, table by table. Write updates existing segments, except in a direct command over one
// segment. There Flush updates it, because it may not be locked yet, and rows are written before names.
func (tx *Tx) Flush(p *commit.Pipe) {
	switch tx.strategy {
	case Batched:
	case Atomic:
		tx.take(p)
	default:
		tx.updateSegments(p)
	}
	tx.insertSegments(p)
	tx.flushDetails(p)
	tx.insertReservations(p)
	tx.updateReservations(p)
	tx.insertChanges(p)
}

func (tx *Tx) insertSegments(p *commit.Pipe) {
	var arg db.ItemInsertParams
	for _, s := range tx.segments {
		if !s.fresh {
			continue
		}
		arg.Tenants = append(arg.Tenants, s.Tenant)
		arg.Items = append(arg.Items, s.Item)
		arg.Segment = append(arg.Segment, s.number)
		arg.Segments = append(arg.Segments, s.segments)
		arg.Strategies = append(arg.Strategies, s.strategy)
		arg.Available = append(arg.Available, s.Available)
		arg.Reserved = append(arg.Reserved, s.Reserved)
		arg.Sold = append(arg.Sold, s.Sold)
		arg.Stocked = append(arg.Stocked, s.Stocked)
		arg.Versions = append(arg.Versions, s.version)
		arg.NextExpiryAt = append(arg.NextExpiryAt, s.nextExpiryAt)
	}
	if len(arg.Items) > 0 {
		p.Queue(func(d commit.DB) error { return q.ItemInsert(p.Context(), d, arg) })
	}
}

func (tx *Tx) flushDetails(p *commit.Pipe) {
	columns := func(rows []*commit.Row[ItemKey, Details]) (arg db.DetailInsertParams) {
		arg.Now = tx.Now
		for _, r := range rows {
			arg.Tenants = append(arg.Tenants, r.Key.Tenant)
			arg.Items = append(arg.Items, r.Key.Item)
			arg.Labels = append(arg.Labels, r.Value.Label)
			arg.Metadata = append(arg.Metadata, pg.JSONOrEmpty(r.Value.Metadata))
			arg.Principals = append(arg.Principals, r.Value.caller.Principal)
			arg.RequestIds = append(arg.RequestIds, r.Value.caller.RequestID)
		}
		return arg
	}
	if arg := columns(tx.details.Fresh()); len(arg.Items) > 0 {
		p.Queue(func(d commit.DB) error { return q.DetailInsert(p.Context(), d, arg) })
	}
	if arg := columns(tx.details.Changed()); len(arg.Items) > 0 {
		p.Queue(func(d commit.DB) error {
			return q.DetailUpdate(p.Context(), d, db.DetailUpdateParams{Items: arg.Items, Now: arg.Now,
				Tenants: arg.Tenants, Labels: arg.Labels, Metadata: arg.Metadata, Principals: arg.Principals,
				RequestIds: arg.RequestIds})
		})
	}
}

func (tx *Tx) insertReservations(p *commit.Pipe) {
	rows := tx.reservations.Fresh()
	if len(rows) == 0 {
		return
	}
	arg := db.ReservationInsertParams{Now: tx.Now}
	pg.Reserve(&arg, len(rows))
	for _, row := range rows {
		r := &row.Value
		arg.Tenants = append(arg.Tenants, row.Key.Tenant)
		arg.Items = append(arg.Items, r.Item)
		arg.ReservationNos = append(arg.ReservationNos, r.ReservationNo)
		arg.ReservationIds = append(arg.ReservationIds, r.ID)
		arg.Quantities = append(arg.Quantities, r.Quantity)
		arg.Unsold = append(arg.Unsold, r.Unsold)
		arg.Segments = append(arg.Segments, r.segment)
		arg.Draws = append(arg.Draws, drawsText(r.draws))
		arg.States = append(arg.States, r.State)
		arg.Refs = append(arg.Refs, r.Ref)
		arg.LifeMs = append(arg.LifeMs, r.Life.Milliseconds())
		arg.ExpiresAt = append(arg.ExpiresAt, r.ExpiresAt)
		arg.ClosedAt = append(arg.ClosedAt, r.ClosedAt)
		arg.Principals = append(arg.Principals, r.Principal)
		arg.RequestIds = append(arg.RequestIds, r.RequestID)
		arg.ClosedPrincipals = append(arg.ClosedPrincipals, r.closedPrincipal)
		arg.ClosedRequestIds = append(arg.ClosedRequestIds, r.closedRequestID)
	}
	p.Queue(func(d commit.DB) error { return q.ReservationInsert(p.Context(), d, arg) })
}

// drawsText is an array of Postgres.
func drawsText(draws []int64) string {
	if draws == nil {
		return ""
	}
	units := make([]string, len(draws))
	for n, u := range draws {
		units[n] = strconv.FormatInt(u, 10)
	}
	return "{" + strings.Join(units, ",") + "}"
}

func (tx *Tx) updateReservations(p *commit.Pipe) {
	all := slices.Clone(tx.expired)
	for _, row := range tx.reservations.Changed() {
		all = append(all, expired{row.Key, row.Value})
	}
	if len(all) == 0 {
		return
	}
	slices.SortFunc(all, func(a, b expired) int { return a.key.compare(b.key) })
	var arg db.ReservationUpdateParams
	pg.Reserve(&arg, len(all))
	for _, r := range all {
		arg.Tids = append(arg.Tids, r.seen.tid)
		arg.Tenants = append(arg.Tenants, r.key.Tenant)
		arg.Items = append(arg.Items, r.key.Item)
		arg.ReservationNos = append(arg.ReservationNos, r.key.no)
		arg.SeenStates = append(arg.SeenStates, r.seen.state)
		arg.SeenUnsold = append(arg.SeenUnsold, r.seen.unsold)
		arg.States = append(arg.States, r.State)
		arg.Unsold = append(arg.Unsold, r.Unsold)
		arg.ClosedAt = append(arg.ClosedAt, r.ClosedAt)
		arg.ClosedPrincipals = append(arg.ClosedPrincipals, r.closedPrincipal)
		arg.ClosedRequestIds = append(arg.ClosedRequestIds, r.closedRequestID)
	}
	p.Queue(func(d commit.DB) error { return q.ReservationUpdate(p.Context(), d, arg) })
}

// insertChanges inserts the facts, and their names.
func (tx *Tx) insertChanges(p *commit.Pipe) {
	rows := tx.changes.Fresh()
	if len(rows) == 0 {
		return
	}
	facts := db.ChangeInsertParams{Now: tx.Now}
	pg.Reserve(&facts, len(rows))
	for _, row := range rows {
		c := &row.Value
		facts.Tenants = append(facts.Tenants, row.Key.Tenant)
		facts.ChangeIds = append(facts.ChangeIds, c.ID)
		facts.Items = append(facts.Items, c.Item)
		facts.ChangeNos = append(facts.ChangeNos, c.ChangeNo)
		facts.Kinds = append(facts.Kinds, c.Kind)
		facts.Quantities = append(facts.Quantities, c.Quantity)
		facts.StockedAfter = append(facts.StockedAfter, c.StockedAfter)
		facts.ReservationNos = append(facts.ReservationNos, c.ReservationNo)
		facts.Reasons = append(facts.Reasons, c.Reason)
		facts.Principals = append(facts.Principals, c.Principal)
		facts.RequestIds = append(facts.RequestIds, c.RequestID)
	}
	p.Queue(func(d commit.DB) error {
		return q.ChangeNameInsert(p.Context(), d, db.ChangeNameInsertParams{Tenants: facts.Tenants, Items: facts.Items,
			ChangeNos: facts.ChangeNos, ChangeIds: facts.ChangeIds})
	})
	p.Queue(func(d commit.DB) error { return q.ChangeInsert(p.Context(), d, facts) })
}
