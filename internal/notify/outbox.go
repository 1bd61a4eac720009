package notify

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"strconv"
	"sync"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/notify/recipient"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// Outbox holds what all transactions of a process share. Set the fields before the first transaction.
type Outbox struct {
	// Master derives the keys for hashes of recipients and contents. Without it messages are refused with
	// SECRET_NOT_CONFIGURED.
	Master *secret.Master
	// Handoff receives new messages after commit. If nil, they wait in the queue to be polled.
	Handoff send.Handoff
	// Instance names this process in leases and events.
	Instance string
	// Region is the default country of phone numbers without a country code, such as CN. Empty: no default.
	Region string
	// Stored reads messages that a command has kept to send them later. Nil: there are none.
	Stored  func(c commit.Caller, stored []byte) ([]SendCommand, error)
	Metrics *Metrics

	limits limitCache
	keys   sync.Map // tenant to *tenantKeys
}

// tenantKeys are the derived hash keys of one tenant.
type tenantKeys struct{ recipient, content, fingerprint, request []byte }

func (o *Outbox) tenantKeys(tenant int32) *tenantKeys {
	if h, ok := o.keys.Load(tenant); ok {
		return h.(*tenantKeys)
	}
	t := strconv.Itoa(int(tenant))
	h := &tenantKeys{recipient: o.Master.Derive("notify.recipient", t), content: o.Master.Derive("notify.content", t),
		fingerprint: o.Master.Derive("notify.fingerprint", t), request: o.Master.Derive("notify.request", t)}
	o.keys.Store(tenant, h)
	return h
}

// hashSize is the size of hashes used for lookups. Hashes used as proof keep all 32 bytes.
const hashSize = 16

// keyedHash returns the HMAC of the fields, each prefixed with its length.
func keyedHash(key []byte, fields ...string) []byte {
	h := hmac.New(sha256.New, key)
	for _, f := range fields {
		h.Write(binary.AppendUvarint(nil, uint64(len(f))))
		h.Write([]byte(f))
	}
	return h.Sum(nil)
}

// RecipientHash returns notify_messages.recipient_hash of a recipient that recipient.Parse has normalized. Returns
// fault SECRET_NOT_CONFIGURED.
func (o *Outbox) RecipientHash(tenant int32, channel send.Channel, parsed string) ([]byte, error) {
	if err := o.Master.Check(); err != nil {
		return nil, err
	}
	return keyedHash(o.tenantKeys(tenant).recipient, string(channel), recipient.Same(channel, parsed))[:hashSize], nil
}

// addressOf normalizes an IP address for counting. IPv6 counts by its first 64 bits, the least that a subscriber gets.
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
