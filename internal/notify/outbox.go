package notify

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"strconv"
	"sync"

	"github.com/ledgerd/ledgerd/internal/notify/recipient"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// Outbox is what the transactions of a process share. All fields are set before the first one.
type Outbox struct {
	// Master makes the hashes of recipients and contents. Nil: messages are refused, with SECRET_NOT_CONFIGURED.
	Master *secret.Master
	// Handoff gets fresh messages when they have committed. Nil: they wait in the queue for whoever finds them.
	Handoff send.Handoff
	// Instance names this process as holder of messages, and in events.
	Instance string
	// Region is the country, such as CN, of phone numbers that are written without theirs. Empty: there are none.
	Region  string
	Metrics *Metrics

	limits limitCache
	keys   sync.Map // tenant to its *hashing
}

// hashing has the keys of one tenant.
type hashing struct{ recipient, content, fingerprint, request []byte }

func (o *Outbox) hashing(tenant int32) *hashing {
	if h, ok := o.keys.Load(tenant); ok {
		return h.(*hashing)
	}
	t := strconv.Itoa(int(tenant))
	h := &hashing{recipient: o.Master.Derive("notify.recipient", t), content: o.Master.Derive("notify.content", t),
		fingerprint: o.Master.Derive("notify.fingerprint", t), request: o.Master.Derive("notify.request", t)}
	o.keys.Store(tenant, h)
	return h
}

// hashSize is that of hashes that find something; those that prove something have all 32 bytes.
const hashSize = 16

// keyed hashes fields, each with its length before it.
func keyed(key []byte, fields ...string) []byte {
	h := hmac.New(sha256.New, key)
	for _, f := range fields {
		h.Write(binary.AppendUvarint(nil, uint64(len(f))))
		h.Write([]byte(f))
	}
	return h.Sum(nil)
}

// RecipientHash is what stands in notify_messages for a recipient in its normal form, as of recipient.Parse.
// Returns fault SECRET_NOT_CONFIGURED.
func (o *Outbox) RecipientHash(tenant int32, channel send.Channel, parsed string) ([]byte, error) {
	if err := o.Master.Check(); err != nil {
		return nil, err
	}
	return keyed(o.hashing(tenant).recipient, string(channel), recipient.Same(channel, parsed))[:hashSize], nil
}

// addressOf is what counts as one address: of IPv6 the first 64 bits, which one subscriber has at least.
func addressOf(ip string) (string, error) {
	a, err := netip.ParseAddr(ip)
	if err != nil {
		return "", err
	}
	if a = a.Unmap().WithZone(""); a.Is4() {
		return a.String(), nil
	}
	p, err := a.Prefix(64)
	return p.String(), err
}
