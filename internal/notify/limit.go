package notify

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/notify/internal/db"
	"github.com/ledgerd/ledgerd/internal/notify/recipient"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// Limit is the maximum number of messages that a tenant may have accepted in any window of its length.
type Limit struct {
	Channel     send.Channel // AllChannels: one count for all channels
	Scope       string
	Window      time.Duration // whole seconds, up to MaxWindow
	MaxMessages int32         // 0: refuse all
}

// AllChannels is the channel of a limit that counts the messages of all channels together.
const AllChannels send.Channel = "*"

// Codes is the channel of a limit that counts only verification codes, on whatever channel they are sent.
const Codes send.Channel = "code"

// codeLimits are the default limits on verification codes. A tenant's own limits of a scope replace the defaults of
// that scope. They stop SMS pumping, which uses few IP addresses, or numbers bought in blocks.
var codeLimits = []Limit{
	{Codes, PerIP, time.Hour, 30}, {Codes, PerIP, 24 * time.Hour, 100},
	{Codes, PerPrefix, time.Hour, 60}, {Codes, PerPrefix, 24 * time.Hour, 300},
}

// MaxWindow is the longest window of a limit.
const MaxWindow = 31 * 24 * time.Hour

// Scopes of a limit: messages with an equal subject share one counter.
const (
	PerTenant    = "tenant" // one counter for the tenant
	PerChannel   = "channel"
	PerRecipient = "recipient"
	PerIP        = "ip"     // by client IP; for IPv6 by its first 64 bits
	PerPrefix    = "prefix" // by phone number without its last four digits
)

// Scopes lists all scopes.
var Scopes = []string{PerTenant, PerChannel, PerRecipient, PerIP, PerPrefix}

// Check validates a limit. Returns fault FIELD_INVALID.
func (l Limit) Check() error {
	field, problem := "", ""
	switch {
	case !slices.Contains(Scopes, l.Scope):
		field, problem = "scope", fmt.Sprintf("must be one of %s, not %q", strings.Join(Scopes, ", "), l.Scope)
	case l.Channel != AllChannels && l.Channel != Codes && !slices.Contains(Channels, l.Channel):
		field, problem = "channel",
			fmt.Sprintf("must be one of %s, code (verification codes alone), or * (all channels together), not %q",
				strings.Trim(strings.ReplaceAll(fmt.Sprint(Channels), " ", ", "), "[]"), l.Channel)
	case l.Scope == PerPrefix && (l.Channel == send.Email || l.Channel == send.Push || l.Channel == send.Webhook):
		field, problem = "scope", "prefix counts phone numbers: the channel must be sms, code or *"
	case l.Window < time.Second || l.Window > MaxWindow || l.Window%time.Second != 0:
		field, problem = "window", fmt.Sprintf("must be whole seconds, 1 to %d", int64(MaxWindow/time.Second))
	case l.MaxMessages < 0:
		field, problem = "max_messages", "must be 0 or more"
	default:
		return nil
	}
	return fault.InvalidField(field, "%s", problem)
}

// PutLimit inserts or replaces the limit with this channel, scope and window, and returns the event of the audit log.
// Servers apply it within a second.
func PutLimit(ctx context.Context, to db.DBTX, tenant int32, l Limit) (x audit.Change, err error) {
	if err := l.Check(); err != nil {
		return x, err
	}
	arg := db.LimitInsertParams{TenantID: tenant, Channel: string(l.Channel), Scope: l.Scope,
		WindowS: int32(l.Window / time.Second), MaxMessages: l.MaxMessages}
	x, err = l.lock(ctx, to, tenant)
	for err == nil && x.Before == nil {
		var made int64
		if made, err = q.LimitInsert(ctx, to, arg); err == nil && made == 1 {
			x.After = limitSettings{l.MaxMessages}
			return x, nil
		}
		if err == nil { // another transaction made it
			x, err = l.lock(ctx, to, tenant)
		}
	}
	if err == nil {
		err = q.LimitUpsert(ctx, to, db.LimitUpsertParams(arg))
	}
	if err != nil {
		return x, fmt.Errorf("set a limit: %w", err)
	}
	x.After = limitSettings{l.MaxMessages}
	return x, nil
}

// DeleteLimit removes the limit with this channel, scope and window, and returns the event of the audit log, which has
// no Before if there was no such limit. Returns fault FIELD_INVALID.
func DeleteLimit(ctx context.Context, to db.DBTX, tenant int32, l Limit) (x audit.Change, err error) {
	l.MaxMessages = 0
	if err = l.Check(); err != nil {
		return x, err
	}
	if x, err = l.lock(ctx, to, tenant); err != nil {
		return x, err
	}
	_, err = q.LimitDelete(ctx, to, db.LimitDeleteParams{TenantID: tenant, Channel: string(l.Channel), Scope: l.Scope,
		WindowS: int32(l.Window / time.Second)})
	return x, err
}

// limitSettings are the settings of a limit in the audit log.
type limitSettings struct {
	MaxMessages int32 `json:"max_messages"`
}

// lock locks a limit that is about to be changed, and returns the beginning of its event.
func (l Limit) lock(ctx context.Context, to db.DBTX, tenant int32) (audit.Change, error) {
	x := audit.Change{Kind: audit.Limit, Name: fmt.Sprintf("%s %s %v", l.Channel, l.Scope, l.Window)}
	found, err := q.LimitLock(ctx, to, db.LimitLockParams{TenantID: tenant, Channel: string(l.Channel), Scope: l.Scope,
		WindowS: int32(l.Window / time.Second)})
	if len(found) > 0 {
		x.Before = limitSettings{found[0]}
	}
	return x, err
}

// ListLimits lists a tenant's limits.
func ListLimits(ctx context.Context, from db.DBTX, tenant int32) ([]Limit, error) {
	rows, err := q.LimitRead(ctx, from, []int32{tenant})
	if err != nil {
		return nil, fmt.Errorf("list limits: %w", err)
	}
	limits := make([]Limit, len(rows))
	for i := range rows {
		limits[i] = limitOf(&rows[i])
	}
	slices.SortFunc(limits, func(a, b Limit) int { return compareCounters(a.row(), b.row()) })
	return limits, nil
}

func limitOf(r *db.LimitReadRow) Limit {
	return Limit{Channel: send.Channel(r.Channel), Scope: r.Scope, Window: time.Duration(r.WindowS) * time.Second,
		MaxMessages: r.MaxMessages}
}

// row returns the counter key of a limit, without tenant and subject.
func (l Limit) row() counterKey {
	return counterKey{channel: string(l.Channel), scope: l.Scope, seconds: int32(l.Window / time.Second)}
}

// limitCacheTTL is how long a process uses limits before it reads them again.
const limitCacheTTL = time.Second

// limitCache caches limits by tenant.
type limitCache struct {
	mu       sync.Mutex
	byTenant map[int32]cachedLimits
}

type cachedLimits struct {
	limits []Limit
	read   time.Time
}

// get returns a tenant's limits; ok is false if they are missing or expired.
func (c *limitCache) get(tenant int32) (limits []Limit, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.byTenant[tenant]
	return r.limits, ok && time.Since(r.read) < limitCacheTTL
}

// put caches limits; asked is the time before they were read, from which they expire.
func (c *limitCache) put(tenant int32, limits []Limit, asked time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byTenant == nil {
		c.byTenant = map[int32]cachedLimits{}
	}
	if len(c.byTenant) > 10_000 { // drop expired tenants
		maps.DeleteFunc(c.byTenant, func(_ int32,
			r cachedLimits) bool {
			return time.Since(r.read) > limitCacheTTL
		})
	}
	c.byTenant[tenant] = cachedLimits{limits, asked}
}

// counted is a message with the counters of all limits that match it.
type counted struct {
	tenant  int32
	channel send.Channel
	to      string // normalized recipient
	address string // see addressOf; empty: none given
	code    bool   // a verification code

	counters []*counterRow
	most     []int32
}

// apply finds the counters of all limits that match the message.
func (l *counted) apply(o *Outbox, limits []Limit, find func(counterKey) *counterRow) {
	l.counters, l.most = l.counters[:0], l.most[:0]
	if l.code {
		limits = withCodes(limits)
	}
	for _, x := range limits {
		if x.Channel != AllChannels && x.Channel != l.channel && !(l.code && x.Channel == Codes) {
			continue
		}
		k := x.row()
		k.tenant = l.tenant
		key := o.tenantKeys(l.tenant).recipient
		switch x.Scope {
		case PerChannel:
			k.subject = string(l.channel)
		case PerRecipient:
			k.subject = string(keyedHash(key, string(l.channel), recipient.Same(l.channel, l.to))[:hashSize])
		case PerIP:
			if l.address == "" {
				continue
			}
			k.subject = string(keyedHash(key, "ip", l.address)[:hashSize])
		case PerPrefix:
			if l.channel != send.SMS {
				continue
			}
			k.subject = string(keyedHash(key, "prefix", recipient.Prefix(l.to))[:hashSize])
		}
		l.counters, l.most = append(l.counters, find(k)), append(l.most, x.MaxMessages)
	}
}

// withCodes returns a tenant's limits, plus the default code limits of scopes for which the tenant has none.
func withCodes(limits []Limit) []Limit {
	all := slices.Clone(limits)
	for _, x := range codeLimits {
		if !slices.ContainsFunc(limits, func(l Limit) bool { return l.Channel == Codes && l.Scope == x.Scope }) {
			all = append(all, x)
		}
	}
	return all
}

// count counts the message in all its counters, or refuses it. Returns fault NOTIFY_LIMITED.
func (l *counted) count(tx *Tx) error {
	for i, r := range l.counters {
		w := tx.counters.Change(r)
		if !w.expiresAt.After(tx.Now) {
			*w = counter{tid: w.tid}
		}
		seconds := r.Key.seconds
		w.moveTo(tx.Now, seconds)
		if ok, at := w.room(l.most[i], seconds); !ok {
			tx.limited = append(tx.limited, tally{l.channel, r.Key.scope})
			f := Limited.New("no more than %d messages may be accepted in %v", l.most[i],
				time.Duration(seconds)*time.Second).
				With("scope", r.Key.scope).With("channel", r.Key.channel).With("window_seconds", seconds).
				With("max_messages", l.most[i])
			if wait := at.Sub(tx.Now); !at.IsZero() && wait > 0 {
				f = f.After(wait).With("retry_after_seconds", int64((wait+time.Second-1)/time.Second))
			}
			return f
		}
	}
	for _, r := range l.counters {
		r.Value.count(r.Key.seconds)
	}
	return nil
}
