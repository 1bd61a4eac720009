package inbox

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
)

// Key identifies a message of one consumer group.
type Key struct {
	Tenant int32
	Group  string
	ID     string
	Part   string // one of several independent effects; empty: the whole message
}

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Group, b.Group), cmp.Compare(a.ID, b.ID),
		cmp.Compare(a.Part, b.Part))
}

// States of a message.
const (
	Processing = "processing"
	Succeeded  = "succeeded"
	Failed     = "failed"
	Died       = "dead"
)

// Delivery is the received message with its retention and retry settings.
type Delivery struct {
	Topic       string
	Content     []byte
	Hash        []byte // SHA-256 of the content, which may be absent; nil: unknown
	ContentLife time.Duration
	Life        time.Duration // after success; 0: forever
	MaxAttempts int32
	Backoff     time.Duration
	MaxBackoff  time.Duration
}

// Defaults of a Delivery.
const (
	DefaultContentLife = 48 * time.Hour
	DefaultMaxAttempts = 10
	DefaultBackoff     = time.Second
	DefaultMaxBackoff  = time.Hour
	DefaultLease       = 30 * time.Second
)

// MaxContent is the size limit for stored content. Of larger content only the hash is stored.
const MaxContent = 1 << 20

// Message is a message as the inbox knows it. Unset times are zero.
type Message struct {
	Key
	RowID          int64
	Topic          string
	Hash           []byte
	State          string
	Holder         string
	Fence          int64
	LeaseExpiresAt time.Time
	Attempts       int32
	MaxAttempts    int32
	Backoff        time.Duration
	MaxBackoff     time.Duration
	RetryAt        time.Time
	FailureText    string
	Result         string
	Life           time.Duration
	ReceivedAt     time.Time
	BegunAt        time.Time
	FinishedAt     time.Time
	RequeuedAt     time.Time
	ExpiresAt      time.Time
	Principal      string
	RequestID      string
	LastRequestID  string

	// Content is set by Get; in a batch, it is the content of a new message, to be stored until ContentUntil.
	Content      []byte
	ContentUntil time.Time
	// anew is set in a batch if an expired message with this key may have left content behind.
	anew bool
}

// wait is the backoff after the last failed attempt: it doubles with every attempt, less a jitter of up to
// half. The jitter is derived from the key and attempt, so it is the same whenever computed.
func (m *Message) wait() time.Duration {
	d := m.Backoff
	for i := int32(1); i < m.Attempts && d < m.MaxBackoff; i++ {
		d *= 2
	}
	d = min(d, m.MaxBackoff)
	h := fnv.New64a()
	for _, s := range []string{m.Group, m.ID, m.Part} {
		h.Write(binary.AppendUvarint(nil, uint64(len(s))))
		h.Write([]byte(s))
	}
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(m.Tenant)<<32|uint64(uint32(m.Attempts))))
	d -= time.Duration(scatter(h.Sum64()) % uint64(d/2+1))
	return max(d.Truncate(time.Microsecond), time.Microsecond)
}

// scatter improves the spread of FNV hashes of similar keys, with MurmurHash3's finalizer.
func scatter(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// fail ends an attempt with a failure.
func (m *Message) fail(now time.Time, c commit.Caller, why string, permanent bool) {
	m.FailureText, m.LeaseExpiresAt, m.LastRequestID = why, time.Time{}, c.RequestID
	if permanent || m.Attempts >= m.MaxAttempts {
		m.State, m.FinishedAt, m.RetryAt = Died, now, time.Time{}
		return
	}
	m.State, m.RetryAt = Failed, now.Add(m.wait())
}

// succeed ends the message successfully.
func (m *Message) succeed(now time.Time, c commit.Caller, result string) {
	m.State, m.Result, m.FinishedAt, m.LastRequestID = Succeeded, result, now, c.RequestID
	m.LeaseExpiresAt, m.RetryAt = time.Time{}, time.Time{}
	if m.Life > 0 {
		m.ExpiresAt = now.Add(m.Life)
	}
}
