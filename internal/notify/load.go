package notify

import (
	"slices"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/notify/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Discover reads the limits that are not cached, finds the dead messages to be requeued, and finds the messages that
// delivery reports name.
func (tx *Tx) Discover(p *commit.Pipe) {
	tx.discoverLimits(p)
	if len(tx.dead) > 0 {
		var arg db.DeadFindParams
		for _, s := range tx.dead {
			arg.Tenants, arg.Channels, arg.FailureCodes = append(arg.Tenants, s.tenant),
				append(arg.Channels, string(s.channel)), append(arg.FailureCodes, s.failureCode)
		}
		p.Queue(func(d commit.DB) error {
			found, err := q.DeadFind(p.Context(), d, arg)
			for _, f := range found {
				s := tx.dead[f.N-1]
				s.rows = append(s.rows, tx.queue.Want(Key{s.tenant, f.MessageID}))
			}
			return err
		})
	}
	tx.discoverReports(p)
}

func (tx *Tx) discoverLimits(p *commit.Pipe) {
	var unknown []int32
	for _, s := range tx.sends {
		if limits, ok := tx.outbox.limits.get(s.tenant); ok {
			tx.limits[s.tenant] = limits
			s.apply(tx.outbox, limits, tx.counters.Want)
		} else if !slices.Contains(unknown, s.tenant) {
			unknown = append(unknown, s.tenant)
		}
	}
	if len(unknown) == 0 {
		return
	}
	asked := time.Now()
	p.Queue(func(d commit.DB) error {
		rows, err := q.LimitRead(p.Context(), d, unknown)
		if err != nil {
			return err
		}
		limits := map[int32][]Limit{}
		for i := range rows {
			limits[rows[i].TenantID] = append(limits[rows[i].TenantID], limitOf(&rows[i]))
		}
		for _, t := range unknown {
			tx.outbox.limits.put(t, limits[t], asked)
			tx.limits[t] = limits[t]
		}
		for _, s := range tx.sends {
			if slices.Contains(unknown, s.tenant) {
				s.apply(tx.outbox, limits[s.tenant], tx.counters.Want)
			}
		}
		return nil
	})
}

func (tx *Tx) discoverReports(p *commit.Pipe) {
	var arg db.SentFindParams
	var of []*ReportCommand
	for _, c := range tx.reports {
		if c.ID == 0 {
			arg.Tenants, arg.Providers = append(arg.Tenants, c.Tenant), append(arg.Providers, c.Provider)
			arg.ProviderMessageIds, of = append(arg.ProviderMessageIds, c.ProviderMessageID), append(of, c)
		}
	}
	if len(of) == 0 {
		return
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.SentFind(p.Context(), d, arg)
		for _, f := range found {
			c := of[f.N-1]
			c.row = tx.queue.Want(Key{c.Tenant, f.MessageID})
		}
		return err
	})
}

// Lock locks and loads fingerprints, open messages and counters, each sorted by key. Counters are last because many
// batches share them.
func (tx *Tx) Lock(p *commit.Pipe) {
	tx.lockFingerprints(p)
	tx.lockQueue(p)
	tx.lockCounters(p)
}

func (tx *Tx) lockFingerprints(p *commit.Pipe) {
	rows := tx.fingerprints.Sorted()
	if len(rows) == 0 {
		return
	}
	var arg db.FingerprintLockParams
	for _, r := range rows {
		arg.Tenants, arg.Channels = append(arg.Tenants, r.Key.tenant), append(arg.Channels, string(r.Key.channel))
		arg.Fingerprints = append(arg.Fingerprints, r.Key.hash[:])
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.FingerprintLock(p.Context(), d, arg)
		for _, f := range found {
			tx.fingerprints.Load(rows[f.N-1], fingerprint{id: f.MessageID, expiresAt: f.ExpiresAt, tid: f.Ctid})
		}
		return err
	})
}

func (tx *Tx) lockQueue(p *commit.Pipe) {
	rows := tx.queue.Sorted()
	if len(rows) == 0 {
		return
	}
	var arg db.QueueLockParams
	for _, r := range rows {
		arg.Tenants, arg.MessageIds = append(arg.Tenants, r.Key.Tenant), append(arg.MessageIds, r.Key.ID)
	}
	if len(tx.reports) > 0 {
		p.Queue(func(d commit.DB) error { return q.ReportLock(p.Context(), d, db.ReportLockParams(arg)) })
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.QueueLock(p.Context(), d, arg)
		for _, f := range found {
			tx.queue.Load(rows[f.N-1], queued{state: f.State, dueAt: pg.OrZero(f.DueAt),
				holder: pg.OrZero(f.Holder), onUnknown: f.OnUnknown,
				unsure: f.Unsure, giveUpAt: f.GiveUpAt, tid: f.Ctid})
		}
		return err
	})
}

func (tx *Tx) lockCounters(p *commit.Pipe) {
	rows := tx.counters.Sorted()
	if len(rows) == 0 {
		return
	}
	var arg db.CounterLockParams
	for _, r := range rows {
		arg.Tenants, arg.Channels, arg.Scopes = append(arg.Tenants, r.Key.tenant), append(arg.Channels, r.Key.channel),
			append(arg.Scopes, r.Key.scope)
		arg.WindowsS, arg.Subjects = append(arg.WindowsS, r.Key.seconds), append(arg.Subjects, []byte(r.Key.subject))
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.CounterLock(p.Context(), d, arg)
		for _, f := range found {
			c := counter{tid: f.Ctid}
			c.slot, c.expiresAt = f.Slot, f.ExpiresAt
			copy(c.counts[:], f.Counts)
			tx.counters.Load(rows[f.N-1], c)
		}
		return err
	})
}

// Lookup reads which biz_nos are taken. All locks are held.
func (tx *Tx) Lookup(p *commit.Pipe) {
	rows := tx.names.Sorted()
	if len(rows) == 0 {
		return
	}
	var arg db.NameLookupParams
	for _, r := range rows {
		arg.Tenants, arg.BizNos = append(arg.Tenants, r.Key.tenant), append(arg.BizNos, r.Key.bizNo)
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.NameLookup(p.Context(), d, arg)
		for _, f := range found {
			tx.names.Load(rows[f.N-1], name{id: f.MessageID, hash: f.RequestHash})
		}
		return err
	})
}

// Resolve loads the messages that the locked rows refer to.
func (tx *Tx) Resolve(p *commit.Pipe) {
	if len(tx.wanted) == 0 {
		return
	}
	slices.SortFunc(tx.wanted, compareKeys)
	keys := slices.Compact(tx.wanted)
	tx.wanted = nil
	var arg db.MessageLoadParams
	for _, k := range keys {
		arg.Tenants, arg.MessageIds = append(arg.Tenants, k.Tenant), append(arg.MessageIds, k.ID)
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.MessageLoad(p.Context(), d, arg)
		for i := range found {
			k := keys[found[i].N-1]
			tx.loaded[k] = messageOf(k, &found[i])
		}
		return err
	})
}
