package notify

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/notify/internal/db"
	"github.com/ledgerd/ledgerd/internal/notify/recipient"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// Limit is how many messages a tenant may have accepted in any window of time.
type Limit struct {
	Channel send.Channel // AllChannels: all together
	Scope   string
	Window  time.Duration // whole seconds, up to GreatestWindow
	Most    int32         // 0: none at all
}

// AllChannels is the channel of a limit for all.
const AllChannels send.Channel = "*"

// Codes is the channel of a limit that counts nothing but verification codes, whatever way they go.
const Codes send.Channel = "code"

// codeLimits are those of codes, scope by scope, unless the tenant has some of that scope: who has codes sent for the
// money of it uses few addresses, or numbers that were bought by the block.
var codeLimits = []Limit{
	{Codes, PerIP, time.Hour, 30}, {Codes, PerIP, 24 * time.Hour, 100},
	{Codes, PerPrefix, time.Hour, 60}, {Codes, PerPrefix, 24 * time.Hour, 300},
}

// GreatestWindow is the longest window of a limit.
const GreatestWindow = 31 * 24 * time.Hour

// What a limit counts apart.
const (
	PerTenant    = "tenant"    // nothing
	PerChannel   = "channel"   // every channel
	PerRecipient = "recipient" // every recipient
	PerIP        = "ip"        // every address that callers say they act for; of IPv6 the first 64 bits
	PerPrefix    = "prefix"    // phone numbers without their last four digits
)

// Scopes are all of them.
var Scopes = []string{PerTenant, PerChannel, PerRecipient, PerIP, PerPrefix}

// SetLimit makes a limit, or replaces the one with the same channel, scope and window. Servers follow within a second.
func SetLimit(ctx context.Context, pool *pgxpool.Pool, tenant int32, l Limit) error {
	switch {
	case !slices.Contains(Scopes, l.Scope):
		return fmt.Errorf("%q is not a scope: use one of %v", l.Scope, Scopes)
	case l.Channel != AllChannels && l.Channel != Codes && !slices.Contains(Channels, l.Channel):
		return fmt.Errorf("%q is not a channel: use one of %v, code for verification codes alone, or * for all channels together", l.Channel, Channels)
	case l.Window < time.Second || l.Window > GreatestWindow || l.Window%time.Second != 0:
		return fmt.Errorf("the window must be whole seconds from 1s to %v, not %v", GreatestWindow, l.Window)
	case l.Most < 0:
		return fmt.Errorf("the limit must be at least 0")
	}
	err := q.LimitUpsert(ctx, pool, db.LimitUpsertParams{TenantID: tenant, Channel: string(l.Channel), Scope: l.Scope,
		WindowS: int32(l.Window / time.Second), Most: l.Most})
	if err != nil {
		return fmt.Errorf("set a limit: %w", err)
	}
	return nil
}

// DeleteLimit removes a limit; ok is false when there is none.
func DeleteLimit(ctx context.Context, pool *pgxpool.Pool, tenant int32, l Limit) (ok bool, err error) {
	n, err := q.LimitDelete(ctx, pool, db.LimitDeleteParams{TenantID: tenant, Channel: string(l.Channel),
		Scope:   l.Scope,
		WindowS: int32(l.Window / time.Second)})
	return n > 0, err
}

// ListLimits lists a tenant's limits.
func ListLimits(ctx context.Context, pool *pgxpool.Pool, tenant int32) ([]Limit, error) {
	rows, err := q.LimitRead(ctx, pool, []int32{tenant})
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
		Most: r.Most}
}

// row is the counter of a limit that counts nothing apart.
func (l Limit) row() counterKey {
	return counterKey{channel: string(l.Channel), scope: l.Scope, seconds: int32(l.Window / time.Second)}
}

// rememberLimits is for how long a process goes by the limits that it has read.
const rememberLimits = time.Second

// limitCache has the limits of tenants, as of lately.
type limitCache struct {
	mu       sync.Mutex
	byTenant map[int32]rememberedLimits
}

type rememberedLimits struct {
	limits []Limit
	read   time.Time
}

// get gives a tenant's limits, unless they have to be read again.
func (c *limitCache) get(tenant int32) (limits []Limit, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.byTenant[tenant]
	return r.limits, ok && time.Since(r.read) < rememberLimits
}

// put keeps what was read; asked is when it was asked for.
func (c *limitCache) put(tenant int32, limits []Limit, asked time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byTenant == nil {
		c.byTenant = map[int32]rememberedLimits{}
	}
	if len(c.byTenant) > 10_000 { // tenants come and go: what is old is read again
		maps.DeleteFunc(c.byTenant, func(_ int32,
			r rememberedLimits) bool {
			return time.Since(r.read) > rememberLimits
		})
	}
	c.byTenant[tenant] = rememberedLimits{limits, asked}
}

// limited is a message that limits count.
type limited struct {
	tenant  int32
	channel send.Channel
	to      string // the recipient in its normal form
	address string // as of addressOf; empty: not told
	code    bool   // a verification code

	counters []*counterRow
	most     []int32
}

// apply finds the counters of a message, by the limits of its tenant.
func (l *limited) apply(o *Outbox, limits []Limit, find func(counterKey) *counterRow) {
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
		key := o.hashing(l.tenant).recipient
		switch x.Scope {
		case PerChannel:
			k.subject = string(l.channel)
		case PerRecipient:
			k.subject = string(keyed(key, string(l.channel), recipient.Same(l.channel, l.to))[:hashSize])
		case PerIP:
			if l.address == "" {
				continue
			}
			k.subject = string(keyed(key, "ip", l.address)[:hashSize])
		case PerPrefix:
			if l.channel != send.SMS {
				continue
			}
			k.subject = string(keyed(key, "prefix", recipient.Prefix(l.to))[:hashSize])
		}
		l.counters, l.most = append(l.counters, find(k)), append(l.most, x.Most)
	}
}

// withCodes are a tenant's limits, and those of codes that take the place of what the tenant has none of.
func withCodes(limits []Limit) []Limit {
	all := slices.Clone(limits)
	for _, x := range codeLimits {
		if !slices.ContainsFunc(limits, func(l Limit) bool { return l.Channel == Codes && l.Scope == x.Scope }) {
			all = append(all, x)
		}
	}
	return all
}

// count counts the message, or refuses it. Returns fault NOTIFY_LIMITED.
func (l *limited) count(tx *Tx) error {
	for i, r := range l.counters {
		w := tx.counters.Change(r)
		if !w.expiresAt.After(tx.now) {
			*w = counter{tid: w.tid}
		}
		seconds := r.Key.seconds
		w.moveTo(tx.now, seconds)
		if ok, at := w.room(l.most[i], seconds); !ok {
			tx.limited = append(tx.limited, tally{l.channel, r.Key.scope})
			f := Limited.New("no more than %d messages may be accepted in %v", l.most[i],
				time.Duration(seconds)*time.Second).
				With("scope", r.Key.scope).With("channel", r.Key.channel).With("window_seconds", seconds).With("most",
				l.most[i])
			if wait := at.Sub(tx.now); !at.IsZero() && wait > 0 {
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
