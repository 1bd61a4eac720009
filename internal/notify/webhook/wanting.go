package webhook

import (
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/commit"
)

// MaxEndpoints limits the endpoints of a tenant, and with them the messages of a published event. It equals the
// constants in notify_endpoints_slot_check, EndpointFind and EndpointSlots.
const MaxEndpoints = 100

// All is a snapshot of a tenant's active endpoints, read before the batch locks rows.
type All struct {
	endpoints []Endpoint
	found     bool
}

// All requests all endpoints of a tenant.
func (tx *Tx) All(tenant int32) *All {
	if a := tx.all[tenant]; a != nil {
		return a
	}
	a := &All{}
	if tx.all == nil {
		tx.all = map[int32]*All{}
	}
	tx.all[tenant] = a
	return a
}

// Wanting returns the names of the endpoints that subscribe to an event type. found is false before Discover has run.
func (a *All) Wanting(event string) (names []string, found bool) {
	for _, e := range a.endpoints {
		if e.Wants(event) {
			names = append(names, e.Name)
		}
	}
	return names, a.found
}

// Discover reads the endpoints of tenants without locks: an endpoint that is changed concurrently may or may not get
// the event.
func (tx *Tx) Discover(p *commit.Pipe) {
	tenants := make([]int32, 0, len(tx.all))
	for tenant := range tx.all {
		tenants = append(tenants, tenant)
	}
	if len(tenants) == 0 {
		return
	}
	slices.Sort(tenants)
	p.Queue(func(d commit.DB) error {
		found, err := q.EndpointFind(p.Context(), d, tenants)
		for _, a := range tx.all {
			a.endpoints, a.found = nil, true
		}
		for _, f := range found {
			e := Endpoint{Key: Key{tenants[f.N-1], f.Name}}
			if f.Types != "" {
				e.Types = strings.Split(f.Types, ",")
			}
			a := tx.all[e.Tenant]
			a.endpoints = append(a.endpoints, e)
		}
		return err
	})
}
