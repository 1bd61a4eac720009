package inbox

import (
	"context"
	"math"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/inbox/internal/db"
	"github.com/ledgerd/ledgerd/internal/paging"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Reader serves reads from committed rows, without locks. It is safe for concurrent use.
type Reader struct{ pool *pgxpool.Pool }

// NewReader makes a Reader on the server's own pool.
func NewReader(pool *pgxpool.Pool) *Reader { return &Reader{pool} }

// Get returns a message with its content. Returns fault MESSAGE_NOT_FOUND.
func (r *Reader) Get(ctx context.Context, k Key) (*Message, error) {
	rows, err := q.MessageGet(ctx, pg.Planned{DB: r.pool},
		db.MessageGetParams{TenantID: k.Tenant, ConsumerGroup: k.Group, MessageID: k.ID, Part: k.Part})
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, notFound(k)
	}
	m := pageRow(k.Tenant, db.MessagePageRow{InboxID: rows[0].InboxID, ConsumerGroup: k.Group, MessageID: k.ID,
		Part:  k.Part,
		Topic: rows[0].Topic, ContentSha256: rows[0].ContentSha256, State: rows[0].State, Holder: rows[0].Holder,
		Fence:          rows[0].Fence,
		LeaseExpiresAt: rows[0].LeaseExpiresAt, Attempts: rows[0].Attempts, MaxAttempts: rows[0].MaxAttempts,
		BackoffMs: rows[0].BackoffMs, MaxBackoffMs: rows[0].MaxBackoffMs, RetryAt: rows[0].RetryAt,
		FailureText: rows[0].FailureText,
		Result:      rows[0].Result, LifeMs: rows[0].LifeMs, ReceivedAt: rows[0].ReceivedAt, BegunAt: rows[0].BegunAt,
		FinishedAt: rows[0].FinishedAt, RequeuedAt: rows[0].RequeuedAt, ExpiresAt: rows[0].ExpiresAt,
		Principal: rows[0].Principal,
		RequestID: rows[0].RequestID, LastRequestID: rows[0].LastRequestID})
	m.Content = rows[0].Content
	return m, nil
}

// Filter selects the messages to list. Zero values match everything.
type Filter struct{ Group, State, Topic string }

// scanMax is how many rows one page may examine.
const scanMax = 50_000

// List lists messages, newest first. A page examines a bounded number of rows, so a page may be short although
// a next token follows. Returns fault PAGE_TOKEN_INVALID.
func (r *Reader) List(ctx context.Context, tenant int32, f Filter, size int,
	token string) (messages []*Message, next string, err error) {
	before, err := f.pages(tenant).AfterNumber(token, math.MaxInt64)
	if err != nil {
		return nil, "", err
	}
	size = paging.Size(size)
	var rows []db.MessagePageRow
	err = pg.Snapshot(ctx, r.pool, func(d pg.DB) (err error) {
		rows, next, err = f.page(ctx, d, tenant, before, size)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	if len(rows) > size {
		rows = rows[:size]
		next = f.pages(tenant).TokenNumber(rows[size-1].InboxID)
	}
	for _, row := range rows {
		messages = append(messages, pageRow(tenant, row))
	}
	return messages, next, nil
}

// page reads one row more than requested, to know whether more follow.
func (f Filter) page(ctx context.Context, d db.DBTX, tenant int32, before int64,
	size int) (rows []db.MessagePageRow, next string, err error) {
	if f.State != "" && f.State != Succeeded {
		open, err := q.MessagePageOpen(ctx, d,
			db.MessagePageOpenParams{TenantID: tenant, OnlyState: f.State, Before: before,
				OnlyGroup: f.Group, OnlyTopic: f.Topic, Count: int32(size + 1)})
		for _, row := range open {
			rows = append(rows, db.MessagePageRow(row))
		}
		return rows, "", err
	}
	rows, err = q.MessagePage(ctx, d, db.MessagePageParams{TenantID: tenant, Before: before, Scan: scanMax,
		OnlyGroup: f.Group,
		OnlyTopic: f.Topic, OnlyState: f.State, Count: int32(size + 1)})
	if err != nil || len(rows) > size {
		return rows, "", err
	}
	seen, err := q.MessagePageEnd(ctx, d, db.MessagePageEndParams{TenantID: tenant, Before: before, Scan: scanMax})
	if seen.Scanned == scanMax {
		next = f.pages(tenant).TokenNumber(seen.Last)
	}
	return rows, next, err
}

// pages binds page tokens to the filter.
func (f Filter) pages(tenant int32) paging.List {
	return paging.Of("inbox", tenant, f.Group, f.State, f.Topic)
}

// Waiting is a requeued message with its content.
type Waiting struct {
	Key     Key
	Topic   string
	Content []byte
}

// RequeuedDue lists requeued messages of a group that may be processed now, oldest first, as long as their
// content is kept. The broker does not deliver them again.
func (r *Reader) RequeuedDue(ctx context.Context, tenant int32, group string, count int) (found []Waiting, err error) {
	rows, err := q.RequeuedDue(ctx, pg.Planned{DB: r.pool},
		db.RequeuedDueParams{TenantID: tenant, ConsumerGroup: group, Count: int32(count)})
	for _, row := range rows {
		found = append(found, Waiting{Key{tenant, group, row.MessageID, row.Part}, row.Topic, row.Content})
	}
	return found, err
}

func pageRow(tenant int32, r db.MessagePageRow) *Message {
	m := messageOf(Key{tenant, r.ConsumerGroup, r.MessageID, r.Part},
		db.MessageLockRow{InboxID: r.InboxID, Topic: r.Topic,
			ContentSha256: r.ContentSha256, State: r.State, Holder: r.Holder, Fence: r.Fence,
			LeaseExpiresAt: r.LeaseExpiresAt,
			Attempts:       r.Attempts, MaxAttempts: r.MaxAttempts, BackoffMs: r.BackoffMs,
			MaxBackoffMs: r.MaxBackoffMs,
			RetryAt:      r.RetryAt,
			FailureText:  r.FailureText, Result: r.Result, LifeMs: r.LifeMs, ReceivedAt: r.ReceivedAt,
			BegunAt: r.BegunAt, FinishedAt: r.FinishedAt,
			RequeuedAt: r.RequeuedAt, ExpiresAt: r.ExpiresAt, Principal: r.Principal, RequestID: r.RequestID,
			LastRequestID: r.LastRequestID})
	return &m
}
