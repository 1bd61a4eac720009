package inbox

import (
	"bytes"
	"encoding/hex"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/inbox/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

var q = db.New()

type (
	row  = commit.Row[Key, Message]
	rows = commit.Rows[Key, Message]
)

// Tx holds the messages of one batch's transaction. It is the inbox's commit.Participant.
type Tx struct {
	rows
	dead []*deadSet
}

var table = commit.NewKeyOrder[Key, Message](compareKeys)

func NewTx() *Tx { return &Tx{rows: table.Rows()} }

// NameConstraints returns the unique constraints on names chosen by callers.
func NameConstraints() []string { return []string{"inbox_messages_pkey"} }

// deadSet is the result of a search: dead messages, which are locked and checked again.
type deadSet struct {
	tenant       int32
	group, topic string
	rows         []*row
}

// wantDead searches for the dead messages of a group, optionally of one topic.
func (tx *Tx) wantDead(tenant int32, group, topic string) *deadSet {
	s := &deadSet{tenant: tenant, group: group, topic: topic}
	tx.dead = append(tx.dead, s)
	return s
}

// maxDead is how many messages one command requeues; DeadFind has the same constant.
const maxDead = 1000

// Discover finds dead messages without locks. They are locked afterwards and may have changed by then.
func (tx *Tx) Discover(p *commit.Pipe) {
	if len(tx.dead) == 0 {
		return
	}
	var arg db.DeadFindParams
	for _, s := range tx.dead {
		arg.Tenants = append(arg.Tenants, s.tenant)
		arg.ConsumerGroups = append(arg.ConsumerGroups, s.group)
		arg.Topics = append(arg.Topics, s.topic)
	}
	p.Queue(func(d commit.DB) error {
		rows, err := q.DeadFind(p.Context(), d, arg)
		for _, r := range rows {
			s := tx.dead[r.N-1]
			s.rows = append(s.rows, tx.Want(Key{s.tenant, s.group, r.MessageID, r.Part}))
		}
		return err
	})
}

func (tx *Tx) Lock(p *commit.Pipe) {
	rows := tx.Sorted()
	if len(rows) == 0 {
		return
	}
	var arg db.MessageLockParams
	for _, r := range rows {
		arg.Tenants = append(arg.Tenants, r.Key.Tenant)
		arg.ConsumerGroups = append(arg.ConsumerGroups, r.Key.Group)
		arg.MessageIds = append(arg.MessageIds, r.Key.ID)
		arg.Parts = append(arg.Parts, r.Key.Part)
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.MessageLock(p.Context(), d, arg)
		for _, f := range found {
			tx.Load(rows[f.N-1], messageOf(rows[f.N-1].Key, f))
		}
		return err
	})
}

// live returns the message of a row unless it is absent or expired.
func (tx *Tx) live(r *row) (*Message, bool) {
	m := &r.Value
	return m, r.Exists && (m.ExpiresAt.IsZero() || m.ExpiresAt.After(tx.Now))
}

// compare refuses content that differs from the first delivery's.
func (tx *Tx) compare(r *row, d *Delivery) error {
	m, ok := tx.live(r)
	if !ok || m.Hash == nil || d.Hash == nil || bytes.Equal(m.Hash, d.Hash) {
		return nil
	}
	return Differs.New("message %s was received before with other content", m.ID).With("message_state", m.State).
		With("content_sha256", hex.EncodeToString(m.Hash)).With("request_content_sha256", hex.EncodeToString(d.Hash))
}

// attempt begins an attempt of an existing or new message. Fences always grow, even if the row was deleted in between,
// because a fence is at least the time in microseconds.
func (tx *Tx) attempt(r *row, c commit.Caller, d *Delivery) *Message {
	_, live := tx.live(r)
	m := tx.Change(r)
	if !live {
		*m = Message{Key: r.Key, RowID: tx.ID(), anew: r.Found, Fence: m.Fence, Topic: d.Topic, ReceivedAt: tx.Now,
			Principal: c.Principal, RequestID: c.RequestID}
		if len(d.Content) > 0 && len(d.Content) <= MaxContent && d.ContentLife > 0 {
			m.Content, m.ContentUntil = d.Content, tx.Now.Add(d.ContentLife)
		}
	}
	if m.Hash == nil {
		m.Hash = d.Hash
	}
	m.Fence = max(m.Fence+1, tx.Now.UnixMicro())
	m.Attempts++
	m.BegunAt, m.LastRequestID = tx.Now, c.RequestID
	m.LeaseExpiresAt, m.RetryAt, m.FinishedAt = time.Time{}, time.Time{}, time.Time{}
	m.MaxAttempts, m.Backoff, m.MaxBackoff, m.Life = d.MaxAttempts, d.Backoff, d.MaxBackoff, d.Life
	return m
}

func (tx *Tx) Flush(p *commit.Pipe) {
	fresh, changed := tx.Fresh(), tx.Changed()
	if len(fresh) > 0 {
		arg := columns(fresh)
		p.Queue(func(d commit.DB) error { return q.MessageInsert(p.Context(), d, arg) })
	}
	if len(changed) > 0 {
		arg := db.MessageUpdateParams(columns(changed))
		p.Queue(func(d commit.DB) error { return q.MessageUpdate(p.Context(), d, arg) })
	}
	var contents db.ContentPutParams
	var left db.ContentDropParams
	for _, rows := range [][]*row{fresh, changed} {
		for _, r := range rows {
			if m := &r.Value; !m.ContentUntil.IsZero() {
				contents.Tenants = append(contents.Tenants, m.Tenant)
				contents.ConsumerGroups = append(contents.ConsumerGroups, m.Group)
				contents.MessageIds = append(contents.MessageIds, m.ID)
				contents.Parts = append(contents.Parts, m.Part)
				contents.Contents = append(contents.Contents, m.Content)
				contents.ExpiresAt = append(contents.ExpiresAt, m.ContentUntil)
			} else if m.anew {
				left.Tenants = append(left.Tenants, m.Tenant)
				left.ConsumerGroups = append(left.ConsumerGroups, m.Group)
				left.MessageIds = append(left.MessageIds, m.ID)
				left.Parts = append(left.Parts, m.Part)
			}
		}
	}
	if len(left.Tenants) > 0 {
		p.Queue(func(d commit.DB) error { return q.ContentDrop(p.Context(), d, left) })
	}
	if len(contents.Tenants) > 0 {
		p.Queue(func(d commit.DB) error { return q.ContentPut(p.Context(), d, contents) })
	}
}

func columns(rows []*row) (arg db.MessageInsertParams) {
	pg.Reserve(&arg, len(rows))
	for _, r := range rows {
		m := &r.Value
		arg.Tenants = append(arg.Tenants, m.Tenant)
		arg.ConsumerGroups = append(arg.ConsumerGroups, m.Group)
		arg.MessageIds = append(arg.MessageIds, m.ID)
		arg.Parts = append(arg.Parts, m.Part)
		arg.InboxIds = append(arg.InboxIds, m.RowID)
		arg.Topics = append(arg.Topics, m.Topic)
		arg.ContentSha256s = append(arg.ContentSha256s, m.Hash)
		arg.States = append(arg.States, m.State)
		arg.Holders = append(arg.Holders, m.Holder)
		arg.Fences = append(arg.Fences, m.Fence)
		arg.LeaseExpiresAt = append(arg.LeaseExpiresAt, m.LeaseExpiresAt)
		arg.Attempts = append(arg.Attempts, m.Attempts)
		arg.MaxAttempts = append(arg.MaxAttempts, m.MaxAttempts)
		arg.BackoffMs = append(arg.BackoffMs, m.Backoff.Milliseconds())
		arg.MaxBackoffMs = append(arg.MaxBackoffMs, m.MaxBackoff.Milliseconds())
		arg.RetryAt = append(arg.RetryAt, m.RetryAt)
		arg.FailureTexts = append(arg.FailureTexts, m.FailureText)
		arg.Results = append(arg.Results, m.Result)
		arg.LifeMs = append(arg.LifeMs, m.Life.Milliseconds())
		arg.ReceivedAt = append(arg.ReceivedAt, m.ReceivedAt)
		arg.BegunAt = append(arg.BegunAt, m.BegunAt)
		arg.FinishedAt = append(arg.FinishedAt, m.FinishedAt)
		arg.RequeuedAt = append(arg.RequeuedAt, m.RequeuedAt)
		arg.ExpiresAt = append(arg.ExpiresAt, m.ExpiresAt)
		arg.Principals = append(arg.Principals, m.Principal)
		arg.RequestIds = append(arg.RequestIds, m.RequestID)
		arg.LastRequestIds = append(arg.LastRequestIds, m.LastRequestID)
	}
	return arg
}

func messageOf(k Key, r db.MessageLockRow) Message {
	return Message{Key: k, RowID: r.InboxID, Topic: r.Topic, Hash: r.ContentSha256, State: r.State, Holder: r.Holder,
		Fence: r.Fence, LeaseExpiresAt: pg.OrZero(r.LeaseExpiresAt), Attempts: r.Attempts, MaxAttempts: r.MaxAttempts,
		Backoff: pg.Milliseconds(r.BackoffMs), MaxBackoff: pg.Milliseconds(r.MaxBackoffMs),
		RetryAt: pg.OrZero(r.RetryAt), FailureText: pg.OrZero(r.FailureText), Result: pg.OrZero(r.Result),
		Life: pg.Milliseconds(pg.OrZero(r.LifeMs)), ReceivedAt: r.ReceivedAt, BegunAt: r.BegunAt,
		FinishedAt: pg.OrZero(r.FinishedAt), RequeuedAt: pg.OrZero(r.RequeuedAt), ExpiresAt: pg.OrZero(r.ExpiresAt),
		Principal: r.Principal, RequestID: r.RequestID, LastRequestID: r.LastRequestID}
}
