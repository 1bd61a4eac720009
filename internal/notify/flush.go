package notify

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/notify/internal/db"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// event is a row for notify_events.
type event struct {
	Key
	number                                         int64 // event_id
	by                                             commit.Caller
	month                                          time.Time
	kind                                           string
	provider, providerID, failureCode, failureText string
}

// note records an event, under a row id of its own.
func (tx *Tx) note(e event) {
	e.number = tx.ID()
	tx.events = append(tx.events, e)
}

// Flush writes changed rows, then new ones, names first.
func (tx *Tx) Flush(p *commit.Pipe) {
	tx.flushFingerprints(p)
	tx.flushQueue(p)
	tx.flushCounters(p)
	tx.insertNames(p)
	tx.insertFingerprints(p)
	tx.insertCounters(p)
	tx.insertMessages(p)
	tx.insertEvents(p)
}

func (tx *Tx) flushFingerprints(p *commit.Pipe) {
	rows := tx.fingerprints.Changed()
	if len(rows) == 0 {
		return
	}
	var arg db.FingerprintRenewParams
	for _, r := range rows {
		arg.Tids, arg.MessageIds = append(arg.Tids, r.Value.tid), append(arg.MessageIds, r.Value.id)
		arg.ExpiresAt = append(arg.ExpiresAt, r.Value.expiresAt)
	}
	p.Queue(func(d commit.DB) error { return q.FingerprintRenew(p.Context(), d, arg) })
}

func (tx *Tx) flushQueue(p *commit.Pipe) {
	var gone []pgtype.TID
	back := db.QueueUpdateParams{Now: tx.Now}
	for _, r := range tx.queue.Changed() {
		switch v := &r.Value; {
		case v.gone:
			gone = append(gone, v.tid)
		case v.requeued:
			back.Tids, back.GiveUpAt = append(back.Tids, v.tid), append(back.GiveUpAt, v.giveUpAt)
			tx.announce(r.Key.Tenant)
		}
	}
	if len(gone) > 0 {
		p.Queue(func(d commit.DB) error { return q.QueueDelete(p.Context(), d, gone) })
	}
	if len(back.Tids) > 0 {
		p.Queue(func(d commit.DB) error { return q.QueueUpdate(p.Context(), d, back) })
	}
}

func (tx *Tx) flushCounters(p *commit.Pipe) {
	rows := tx.counters.Changed()
	if len(rows) == 0 {
		return
	}
	var arg db.CounterUpdateParams
	for _, r := range rows {
		v := &r.Value
		arg.Tids, arg.Slots = append(arg.Tids, v.tid), append(arg.Slots, v.slot)
		arg.Counts, arg.ExpiresAt = append(arg.Counts, v.text()), append(arg.ExpiresAt, v.expiresAt)
	}
	p.Queue(func(d commit.DB) error { return q.CounterUpdate(p.Context(), d, arg) })
}

func (tx *Tx) insertNames(p *commit.Pipe) {
	rows := tx.names.Fresh()
	if len(rows) == 0 {
		return
	}
	var arg db.NameInsertParams
	pg.Reserve(&arg, len(rows))
	for _, r := range rows {
		arg.Tenants, arg.BizNos = append(arg.Tenants, r.Key.tenant), append(arg.BizNos, r.Key.bizNo)
		arg.MessageIds, arg.RequestHashes = append(arg.MessageIds, r.Value.id), append(arg.RequestHashes, r.Value.hash)
	}
	p.Queue(func(d commit.DB) error { return q.NameInsert(p.Context(), d, arg) })
}

func (tx *Tx) insertFingerprints(p *commit.Pipe) {
	rows := tx.fingerprints.Fresh()
	if len(rows) == 0 {
		return
	}
	var arg db.FingerprintInsertParams
	for _, r := range rows {
		arg.Tenants, arg.Channels = append(arg.Tenants, r.Key.tenant), append(arg.Channels, string(r.Key.channel))
		arg.Fingerprints, arg.MessageIds = append(arg.Fingerprints, r.Key.hash[:]), append(arg.MessageIds, r.Value.id)
		arg.ExpiresAt = append(arg.ExpiresAt, r.Value.expiresAt)
	}
	p.Queue(func(d commit.DB) error { return q.FingerprintInsert(p.Context(), d, arg) })
}

func (tx *Tx) insertCounters(p *commit.Pipe) {
	rows := tx.counters.Fresh()
	if len(rows) == 0 {
		return
	}
	var arg db.CounterInsertParams
	for _, r := range rows {
		v := &r.Value
		arg.Tenants, arg.Channels, arg.Scopes = append(arg.Tenants, r.Key.tenant), append(arg.Channels, r.Key.channel),
			append(arg.Scopes, r.Key.scope)
		arg.WindowsS, arg.Subjects = append(arg.WindowsS, r.Key.seconds), append(arg.Subjects, []byte(r.Key.subject))
		arg.Slots, arg.Counts, arg.ExpiresAt = append(arg.Slots, v.slot), append(arg.Counts, v.text()),
			append(arg.ExpiresAt, v.expiresAt)
	}
	p.Queue(func(d commit.DB) error { return q.CounterInsert(p.Context(), d, arg) })
}

func (tx *Tx) insertMessages(p *commit.Pipe) {
	if len(tx.created) == 0 {
		return
	}
	month := date(monthOf(tx.recorded))
	m, c, o := db.MessageInsertParams{Month: month, AcceptedAt: tx.recorded}, db.ContentInsertParams{},
		db.QueueInsertParams{Month: month}
	pg.Reserve(&m, len(tx.created))
	pg.Reserve(&o, len(tx.created))
	for _, x := range tx.created {
		m.Tenants, m.MessageIds, m.Channels = append(m.Tenants, x.Tenant), append(m.MessageIds, x.ID),
			append(m.Channels, string(x.Channel))
		m.BusinessTypes, m.BizNos, m.Templates = append(m.BusinessTypes, x.BusinessType), append(m.BizNos, x.BizNo),
			append(m.Templates, x.Template)
		m.Locales, m.RecipientHashes = append(m.Locales, x.Locale), append(m.RecipientHashes, x.RecipientHash)
		m.RecipientHints, m.ContentHashes = append(m.RecipientHints, x.RecipientHint),
			append(m.ContentHashes, x.ContentHash)
		m.Fingerprints, m.Priorities = append(m.Fingerprints, x.fingerprint), append(m.Priorities, int32(x.Priority))
		m.OnUnknowns, m.MaxAttempts = append(m.OnUnknowns, x.OnUnknown), append(m.MaxAttempts, x.MaxAttempts)
		m.NotBefore, m.GiveUpAt = append(m.NotBefore, x.NotBefore), append(m.GiveUpAt, x.GiveUpAt)
		m.ContentsUntil, m.Principals = append(m.ContentsUntil, x.ContentsUntil), append(m.Principals, x.Principal)
		m.RequestIds = append(m.RequestIds, x.RequestID)
		c.Recipients, c.Contents = append(c.Recipients, x.recipient), append(c.Contents, x.text)
		if !x.revoked {
			tx.queueUp(&o, x)
		}
	}
	c.Tenants, c.MessageIds, c.ContentsUntil = m.Tenants, m.MessageIds, m.ContentsUntil
	p.Queue(func(d commit.DB) error { return q.MessageInsert(p.Context(), d, m) })
	p.Queue(func(d commit.DB) error { return q.ContentInsert(p.Context(), d, c) })
	p.Queue(func(d commit.DB) error { return q.QueueInsert(p.Context(), d, o) })
}

// queueUp leases a due message to this process if the handoff has room. Otherwise the message is inserted without a
// holder, for any process to poll.
func (tx *Tx) queueUp(o *db.QueueInsertParams, m *created) {
	dueAt, holder, fence := m.DueAt, "", int64(0)
	if !dueAt.After(tx.Now) {
		if h := tx.outbox.Handoff; h != nil && h.Reserve(m.Tenant, m.Channel) {
			dueAt, holder, fence = tx.Now.Add(send.Lease), tx.outbox.Instance, 1
			tx.jobs = append(tx.jobs, tx.job(m))
		} else {
			tx.announce(m.Tenant)
		}
	}
	o.DueAt, o.Holders, o.Fences = append(o.DueAt, dueAt), append(o.Holders, holder), append(o.Fences, fence)
	o.Tenants, o.MessageIds, o.Channels = append(o.Tenants, m.Tenant), append(o.MessageIds, m.ID),
		append(o.Channels, string(m.Channel))
	o.Priorities, o.OnUnknowns = append(o.Priorities, int32(m.Priority)), append(o.OnUnknowns, m.OnUnknown)
	o.MaxAttempts, o.GiveUpAt = append(o.MaxAttempts, m.MaxAttempts), append(o.GiveUpAt, m.GiveUpAt)
	o.ContentsUntil = append(o.ContentsUntil, m.ContentsUntil)
}

// job returns a leased message in the form that the handoff takes.
func (tx *Tx) job(m *created) *send.Job {
	return &send.Job{Message: send.Message{Tenant: m.Tenant, ID: m.ID, Channel: m.Channel, Attempt: 1,
		Recipient: m.recipient, Content: m.content, Park: m.OnUnknown != Resend}, Fence: 1,
		Until: tx.opened.Add(send.Lease), Priority: m.Priority,
		MaxAttempts: int(m.MaxAttempts), GiveUpAt: m.GiveUpAt, Month: m.Month, ContentsUntil: m.ContentsUntil,
		Never: m.OnUnknown == Never}
}

// announce records that a tenant has due messages without a holder, for Ended to announce.
func (tx *Tx) announce(tenant int32) {
	if tx.due == nil {
		tx.due = map[int32]bool{}
	}
	tx.due[tenant] = true
}

func (tx *Tx) insertEvents(p *commit.Pipe) {
	if len(tx.events) == 0 {
		return
	}
	arg := db.EventInsertParams{Now: tx.Now, Instance: tx.outbox.Instance}
	pg.Reserve(&arg, len(tx.events))
	for _, e := range tx.events {
		arg.EventIds = append(arg.EventIds, e.number)
		arg.Tenants, arg.MessageIds, arg.Months = append(arg.Tenants, e.Tenant), append(arg.MessageIds, e.ID),
			append(arg.Months, e.month)
		arg.Kinds, arg.Providers = append(arg.Kinds, e.kind), append(arg.Providers, e.provider)
		arg.ProviderMessageIds, arg.FailureCodes, arg.FailureTexts = append(arg.ProviderMessageIds, e.providerID),
			append(arg.FailureCodes, e.failureCode), append(arg.FailureTexts, e.failureText)
		arg.Principals, arg.RequestIds = append(arg.Principals, e.by.Principal), append(arg.RequestIds, e.by.RequestID)
	}
	p.Queue(func(d commit.DB) error { return q.EventInsert(p.Context(), d, arg) })
}

// Ended hands the leased messages over after a commit, or releases their room after a rollback.
func (tx *Tx) Ended(durable bool) {
	jobs := tx.jobs
	tx.jobs = nil
	var accepted []send.Channel
	if durable {
		for _, m := range tx.created {
			accepted = append(accepted, m.Channel)
		}
	}
	tx.outbox.Metrics.count(accepted, tx.repeats, tx.limited)
	h := tx.outbox.Handoff
	switch {
	case h == nil:
	case !durable:
		if len(jobs) > 0 {
			h.Drop(jobs)
		}
	default:
		if len(jobs) > 0 {
			h.Take(jobs)
		}
		for tenant := range tx.due {
			h.Due(tenant)
		}
	}
}
