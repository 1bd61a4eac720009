package notify

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/notify/internal/db"
	"github.com/ledgerd/ledgerd/internal/notify/recipient"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/paging"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Reader reads committed messages without locks. Safe for concurrent use.
type Reader struct {
	pool   *pgxpool.Pool
	outbox *Outbox
}

// NewReader returns a reader that uses the service's pool.
func NewReader(pool *pgxpool.Pool, o *Outbox) *Reader { return &Reader{pool, o} }

// Event is one event in the history of a message.
type Event struct {
	Kind                        string
	Attempt                     int32 // 0: none
	Provider, ProviderMessageID string
	FailureCode, FailureText    string
	At                          time.Time
	Instance                    string
	Principal, RequestID        string // of the call that caused it; empty for events of attempts
}

// Detail is a message with its events and, if requested, its content.
type Detail struct {
	*Message
	Events []Event // the last 100, oldest first
	// Recipient and Content are set if requested and not yet deleted. The content of a code is never set.
	Recipient string
	Content   *send.Content
}

// Get returns a message by id, or by bizNo if the id is 0. Returns fault NOTIFY_NOT_FOUND.
func (r *Reader) Get(ctx context.Context, k Key, bizNo string, withContent bool) (t *Detail, err error) {
	err = pg.Snapshot(ctx, r.pool, func(d pg.DB) error {
		if k.ID == 0 {
			ids, err := q.NameFind(ctx, d, db.NameFindParams{TenantID: k.Tenant, BizNo: bizNo})
			if err != nil {
				return err
			}
			if len(ids) == 0 {
				return NotFound.New("there is no message %s", bizNo).With("message_biz_no", bizNo).
					WithField("message_biz_no", "must be the business number of a message that exists")
			}
			k.ID = ids[0]
		}
		messages, err := load(ctx, d, k.Tenant, []int64{k.ID})
		if err != nil {
			return err
		}
		if len(messages) == 0 {
			return notFound(k.ID)
		}
		t = &Detail{Message: messages[0]}
		if err := t.events(ctx, d); err != nil || !withContent {
			return err
		}
		return t.content(ctx, d)
	})
	return t, err
}

func (t *Detail) events(ctx context.Context, d db.DBTX) error {
	rows, err := q.EventList(ctx, d, db.EventListParams{TenantID: t.Tenant, MessageID: t.ID, Month: date(t.Month)})
	for _, e := range slices.Backward(rows) {
		t.Events = append(t.Events, Event{Kind: e.Kind, Attempt: e.Attempt, Provider: pg.OrZero(e.Provider),
			ProviderMessageID: pg.OrZero(e.ProviderMessageID),
			FailureCode:       pg.OrZero(e.FailureCode), FailureText: pg.OrZero(e.FailureText),
			At: e.At, Instance: e.Instance, Principal: pg.OrZero(e.Principal), RequestID: pg.OrZero(e.RequestID)})
	}
	return err
}

func (t *Detail) content(ctx context.Context, d db.DBTX) error {
	rows, err := q.ContentGet(ctx, d, db.ContentGetParams{TenantID: t.Tenant, MessageID: t.ID,
		ContentsUntil: date(t.ContentsUntil)})
	if err != nil || len(rows) == 0 {
		return err
	}
	t.Recipient = rows[0].Recipient
	if secret.Sealed(rows[0].Content) { // a verification code
		return nil
	}
	t.Content = new(send.Content)
	if err := json.Unmarshal(rows[0].Content, t.Content); err != nil {
		return fmt.Errorf("read the content of a message: %w", err)
	}
	return nil
}

// load reads messages by id, in the order of the ids.
func load(ctx context.Context, d db.DBTX, tenant int32, ids []int64) ([]*Message, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	rows, err := q.MessageLoad(ctx, d, db.MessageLoadParams{Tenants: slices.Repeat([]int32{tenant}, len(ids)),
		MessageIds: ids})
	messages := make([]*Message, len(rows))
	for i := range rows {
		messages[i] = messageOf(Key{tenant, ids[rows[i].N-1]}, &rows[i])
	}
	return messages, err
}

// Filter selects the messages to list. Zero values match all.
type Filter struct {
	Channel     send.Channel
	Recipient   string // as the caller writes it; needs Channel
	State       string // an open state
	FailureCode string // needs State
}

// scanMax is how many rows are scanned for one page.
const scanMax = 50_000

// List returns one page of messages, newest first. A page scans at most scanMax rows, so a page may be short, or empty,
// and still have a next one. Returns faults PAGE_TOKEN_INVALID and FIELD_INVALID.
func (r *Reader) List(ctx context.Context, tenant int32, f Filter, size int,
	token string) (messages []*Message, next string, err error) {
	l := listing{Filter: f, tenant: tenant, size: size,
		pages: paging.Of("notify", tenant, string(f.Channel), f.Recipient, f.State, f.FailureCode)}
	if l.before, err = l.pages.AfterNumber(token, math.MaxInt64); err != nil {
		return nil, "", err
	}
	if f.Recipient != "" {
		to, err := recipient.Parse(f.Channel, f.Recipient, r.outbox.Region)
		if err != nil {
			return nil, "", fault.InvalidField("recipient", "%v", err)
		}
		if l.hash, err = r.outbox.RecipientHash(tenant, f.Channel, to); err != nil {
			return nil, "", err
		}
	}
	l.size = paging.Size(l.size)
	err = pg.Snapshot(ctx, r.pool, func(d pg.DB) error {
		ids, err := l.find(ctx, d)
		if err != nil {
			return err
		}
		if len(ids) > l.size {
			ids = ids[:l.size]
			next = l.pages.TokenNumber(ids[l.size-1])
		} else if next, err = l.more(ctx, d); err != nil {
			return err
		}
		messages, err = load(ctx, d, tenant, ids)
		return err
	})
	return messages, next, err
}

// listing is one page request.
type listing struct {
	Filter
	tenant int32
	hash   []byte // of the recipient; nil: any
	before int64
	size   int
	pages  paging.List
}

// find returns up to size+1 ids: the extra one shows that there is a next page.
func (l *listing) find(ctx context.Context, d db.DBTX) ([]int64, error) {
	count := int32(l.size + 1)
	switch {
	case l.hash != nil:
		return q.MessagePageTo(ctx, d, db.MessagePageToParams{TenantID: l.tenant, RecipientHash: l.hash,
			Before: l.before, Count: count})
	case l.State != "":
		return q.MessagePageOpen(ctx, d,
			db.MessagePageOpenParams{TenantID: l.tenant, Before: l.before, Scan: scanMax, OnlyState: l.State,
				OnlyChannel: string(l.Channel), OnlyFailureCode: l.FailureCode, Count: count})
	}
	return q.MessagePage(ctx, d, db.MessagePageParams{TenantID: l.tenant, Before: l.before, Scan: scanMax,
		OnlyChannel: string(l.Channel), Count: count})
}

// more returns the token for the row at which the scan stopped, or "" if the scan reached the end.
func (l *listing) more(ctx context.Context, d db.DBTX) (token string, err error) {
	var scanned, last int64
	switch {
	case l.hash != nil:
		return "", nil
	case l.State != "":
		end, err := q.MessagePageOpenEnd(ctx, d,
			db.MessagePageOpenEndParams{TenantID: l.tenant, Before: l.before, Scan: scanMax})
		if err != nil {
			return "", err
		}
		scanned, last = end.Scanned, end.Last
	default:
		end, err := q.MessagePageEnd(ctx, d,
			db.MessagePageEndParams{TenantID: l.tenant, Before: l.before, Scan: scanMax})
		if err != nil {
			return "", err
		}
		scanned, last = end.Scanned, end.Last
	}
	if scanned < scanMax {
		return "", nil
	}
	return l.pages.TokenNumber(last), nil
}

// DeadGroup summarizes the parked messages of one channel and failure code.
type DeadGroup struct {
	Channel     send.Channel
	FailureCode string
	Count       int32 // at most 10,000 are counted
	Example     *Message
	FailureText string // of the example's last failure
}

// DeadGroups groups the messages in state Dead or Unknown, largest group first.
func (r *Reader) DeadGroups(ctx context.Context, tenant int32, state string) (groups []DeadGroup, err error) {
	err = pgx.BeginTxFunc(ctx, r.pool, pg.Begin(ctx, beginGroup), func(tx pgx.Tx) error {
		d := pg.Planned{DB: tx}
		rows, err := q.DeadGroups(ctx, d, db.DeadGroupsParams{TenantID: tenant, State: state})
		if err != nil {
			return err
		}
		for _, g := range rows {
			found, err := load(ctx, d, tenant, []int64{g.Newest})
			if err != nil {
				return err
			}
			if len(found) == 0 {
				continue
			}
			t := Detail{Message: found[0]}
			if err := t.events(ctx, d); err != nil {
				return err
			}
			group := DeadGroup{Channel: send.Channel(g.Channel), FailureCode: g.FailureCode, Count: g.Messages,
				Example: t.Message}
			for _, e := range t.Events {
				group.FailureText = cmp.Or(e.FailureText, group.FailureText)
			}
			groups = append(groups, group)
		}
		return nil
	})
	return groups, err
}

// beginGroup begins a snapshot for queries that sort a few rows: pg.Snapshot forbids that.
const beginGroup = "begin isolation level repeatable read read only; " +
	"set local enable_seqscan = off; set local jit = off"
