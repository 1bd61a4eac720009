package notify

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/notify/email"
	"github.com/ledgerd/ledgerd/internal/notify/recipient"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
)

// Params describes a message to send. Zero values mean defaults.
type Params struct {
	Channel   send.Channel
	Recipient string // as the caller writes it
	// Content is sent as it is, unless Render is set: then the content is rendered when the command is applied.
	// Identity stands in for that content in repeat detection, such as the template's name and variables: equal
	// identities are repeats even if the template has changed in between.
	Content  send.Content
	Render   func() (Rendered, error)
	Identity []byte
	// Template renders the content. It sets Render and Identity.
	Template *Templated

	BusinessType string
	BizNo        string
	Priority     int16     // High, Normal or Low; has no default
	AnyPriority  bool      // Rendered.Priority may override Priority
	NotBefore    time.Time // zero: at once
	GiveUpAfter  time.Duration
	ContentLife  time.Duration
	OnUnknown    string
	MaxAttempts  int32
	RepeatWindow *time.Duration // 0: no detection of repeats by content
	ClientIP     string         // of the end user; empty: unknown
	Code         bool           // a verification code: also counted by code limits, and sealed in the database
}

// Rendered is the result of Params.Render. The fields after Locale apply where Params sets none.
type Rendered struct {
	Content     send.Content
	Template    string // name@version
	Locale      string
	OnUnknown   string
	Priority    *int16 // needs Params.AnyPriority
	MaxAttempts int32
	GiveUpAfter time.Duration
}

// Defaults and limits.
const (
	DefaultGiveUpAfter = 24 * time.Hour
	DefaultContentLife = 48 * time.Hour
	DefaultMaxAttempts = 10
	// MaxAhead limits NotBefore, and MaxGiveUpAfter the time for attempts after that. Their sum plus a day is less than
	// the 71 days for which partitions of contents exist.
	MaxAhead       = 30 * 24 * time.Hour
	MaxGiveUpAfter = 7 * 24 * time.Hour
	MaxContentLife = 30 * 24 * time.Hour
	// MaxContent limits the size of a message as it is stored.
	MaxContent = 1 << 20
)

// repeatWindows are the defaults of RepeatWindow.
var repeatWindows = map[send.Channel]time.Duration{send.SMS: time.Hour, send.Email: 24 * time.Hour,
	send.Push: time.Hour}

// onUnknowns are the defaults of OnUnknown: resend where the receiver deduplicates by key.
var onUnknowns = map[send.Channel]string{send.SMS: Park, send.Email: Park, send.Push: Resend, send.Webhook: Resend}

// SendCommand accepts a message. Its answer is a *Message. Another command sends a message as part of itself by calling
// Need and Apply: a fault of Apply, such as NOTIFY_LIMITED, then refuses both.
type SendCommand struct {
	commit.Caller
	Params

	err         error // of prepare
	name        *nameRow
	fingerprint *fingerprintRow
	key         fingerprintKey // of fingerprint
	to          string         // normalized recipient
	request     []byte         // hash of the request, for biz_no
	address     string         // see addressOf
	counted     counted
}

// Check validates a message that is sent later. Returns faults SECRET_NOT_CONFIGURED and FIELD_INVALID.
func (c *SendCommand) Check(o *Outbox) error {
	m := *c
	return m.prepare(o)
}

// Need requests the rows of the biz_no and the fingerprint. Discover requests the counters, once limits are known.
func (c *SendCommand) Need(tx *Tx) {
	c.name, c.fingerprint = nil, nil
	if c.Template != nil {
		c.Template.Tenant, c.Template.Channel = c.Tenant, c.Channel
		c.Template.need(tx, &c.Params)
	}
	if c.err = c.prepare(tx.outbox); c.err != nil {
		return
	}
	c.counted = counted{tenant: c.Tenant, channel: c.Channel, to: c.to, address: c.address, code: c.Code}
	if tx.started() {
		c.needLate(tx)
		return
	}
	if c.BizNo != "" {
		c.name = tx.names.Want(nameKey{c.Tenant, c.BizNo})
	}
	if c.window() > 0 {
		c.fingerprint = tx.fingerprints.Want(c.key)
	}
	tx.sends = append(tx.sends, &c.counted)
}

// needLate is Need after the batch has started, when rows can no longer be requested: in an Execute whose references
// were just resolved. The unresolved message has already requested all rows except the fingerprint, because references
// change only the content. The fingerprint is inserted without a lookup. If that violates the unique constraint, the
// batch runs again, and then requests the fingerprint of the resolved message first.
func (c *SendCommand) needLate(tx *Tx) {
	c.counted.apply(tx.outbox, tx.limits[c.Tenant], tx.counters.Wanted)
	c.name = tx.names.Wanted(nameKey{c.Tenant, c.BizNo})
	if c.window() == 0 {
		return
	}
	if r := tx.fingerprints.Wanted(c.key); r != nil {
		c.fingerprint = r
	} else {
		c.fingerprint = tx.late[c.key]
	}
}

// prepare validates the request and computes its hashes.
func (c *SendCommand) prepare(o *Outbox) (err error) {
	if err := o.Master.Check(); err != nil {
		return err
	}
	if c.to, err = recipient.Parse(c.Channel, c.Recipient, o.Region); err != nil {
		return fault.InvalidField("recipient", "%v", err)
	}
	c.address = ""
	if c.ClientIP != "" {
		if c.address, err = addressOf(c.ClientIP); err != nil {
			return fault.InvalidField("client_ip", "must be an IP address")
		}
	}
	identity := c.Identity
	if c.Render == nil {
		if identity, err = json.Marshal(&c.Content); err != nil {
			return err
		}
	}
	h, same := o.tenantKeys(c.Tenant), recipient.Same(c.Channel, c.to)
	c.request = keyedHash(h.request, string(c.Channel), same, c.BusinessType, string(identity))
	c.key = fingerprintKey{c.Tenant, c.Channel,
		[hashSize]byte(keyedHash(h.fingerprint, same, string(identity), c.BusinessType))}
	return nil
}

func (c *SendCommand) window() time.Duration {
	if c.RepeatWindow != nil {
		return *c.RepeatWindow
	}
	return repeatWindows[c.Channel]
}

// Apply accepts the message, or answers with the first one if it is a repeat. Returns faults FIELD_INVALID,
// SECRET_NOT_CONFIGURED, NOTIFY_BIZ_NO_EXISTS_DIFFERENT, NOTIFY_LIMITED, NOTIFY_CONTENT_TOO_LARGE, and those of Render.
func (c *SendCommand) Apply(tx *Tx) (any, error) {
	if c.err != nil {
		return nil, c.err
	}
	if c.NotBefore.Sub(tx.Now) > MaxAhead { // also of a repeat
		return nil, fault.InvalidField("not_before", "must be at most 30 days in the future")
	}
	// In an Execute the unresolved message has requested these rows.
	if c.BizNo != "" && c.name == nil || slices.Contains(c.counted.counters, nil) {
		return nil, commit.ErrMoreRows
	}
	if c.name != nil && c.name.Exists {
		first, err := c.existing(tx)
		if err != nil {
			return nil, err
		}
		tx.repeats = append(tx.repeats, tally{c.Channel, "biz_no"})
		return commit.Repeat{First: first}, nil
	}
	if first := c.repeat(tx); first != nil {
		if c.name != nil { // the biz_no names this message for ever, also after the window
			*tx.names.Change(c.name) = name{id: first.ID, hash: c.request, created: c.fingerprint.Value.created}
		}
		tx.repeats = append(tx.repeats, tally{c.Channel, "fingerprint"})
		return commit.Repeat{First: first}, nil
	}
	if err := c.counted.count(tx); err != nil {
		return nil, err
	}
	m, err := c.make(tx)
	if err != nil {
		return nil, err
	}
	return &m.Message, nil
}

// CountOnly counts the message for limits instead of applying it. Returns fault NOTIFY_LIMITED.
func (c *SendCommand) CountOnly(tx *Tx) error {
	if c.err != nil {
		return c.err
	}
	if slices.Contains(c.counted.counters, nil) {
		return commit.ErrMoreRows
	}
	return c.counted.count(tx)
}

// existing returns the message that has the biz_no. Returns fault NOTIFY_BIZ_NO_EXISTS_DIFFERENT if its request
// differs.
func (c *SendCommand) existing(tx *Tx) (*Message, error) {
	n := &c.name.Value
	first := tx.present(n.created)
	if first == nil {
		first = tx.message(Key{c.Tenant, n.id})
	}
	if bytes.Equal(n.hash, c.request) {
		if first == nil { // its proof was dropped
			first = &Message{Key: Key{c.Tenant, n.id}, Channel: c.Channel, BusinessType: c.BusinessType, BizNo: c.BizNo}
		}
		return first, nil
	}
	f := BizNoExistsDifferent.New("biz_no %s is already used by another message", c.BizNo).With("biz_no",
		c.BizNo).With("first_id", n.id)
	if first != nil {
		f = f.Differing(c.differences(tx.outbox, first), "biz_no").With("state", first.State)
	}
	return nil, f
}

// differences returns the fields in which the request differs from the message with its biz_no.
func (c *SendCommand) differences(o *Outbox, m *Message) (fields []string) {
	if c.Channel != m.Channel {
		fields = append(fields, "channel")
	}
	if hash, err := o.RecipientHash(c.Tenant, c.Channel, c.to); err != nil || !bytes.Equal(hash, m.RecipientHash) &&
		c.Channel == m.Channel {
		fields = append(fields, "recipient")
	}
	if c.BusinessType != m.BusinessType {
		fields = append(fields, "business_type")
	}
	if len(fields) == 0 || c.Render == nil && !bytes.Equal(c.contentHash(o, &c.Content), m.ContentHash) {
		fields = append(fields, c.contentField())
	}
	return fields
}

// contentField returns the name of the field of a request that has the content.
func (c *SendCommand) contentField() string {
	if c.Template != nil {
		return "template"
	}
	return "content"
}

func (c *SendCommand) contentHash(o *Outbox, content *send.Content) []byte {
	text, err := json.Marshal(content)
	if err != nil {
		return nil
	}
	return keyedHash(o.tenantKeys(c.Tenant).content, string(text))
}

// repeat returns the earlier message with the same fingerprint, or nil. A dead or cancelled message does not count.
func (c *SendCommand) repeat(tx *Tx) *Message {
	if c.fingerprint == nil || !c.fingerprint.Exists || !c.fingerprint.Value.expiresAt.After(tx.Now) {
		return nil
	}
	v := &c.fingerprint.Value
	m := tx.present(v.created)
	if m == nil {
		m = tx.message(Key{c.Tenant, v.id})
	}
	if m == nil || m.State == Dead || m.State == Cancelled {
		return nil
	}
	return m
}

// created is a message that this batch inserts.
type created struct {
	Message
	fingerprint []byte
	recipient   string
	content     send.Content
	text        []byte // content as it is stored
	revoked     bool   // cancelled by the same batch: never queued
}

// check returns fault FIELD_INVALID if the channel cannot send the content.
func (c *SendCommand) check(content *send.Content) (err error) {
	field := ""
	switch c.Channel {
	case send.Email:
		field, err = email.Check(content)
	case send.Webhook:
		field, err = webhook.Check(content)
	}
	if err == nil {
		return nil
	}
	if field = "content." + field; c.Render != nil {
		field = c.contentField()
	}
	return fault.InvalidField(field, "%v", err)
}

func (c *SendCommand) make(tx *Tx) (*created, error) {
	r := Rendered{Content: c.Content}
	if c.Render != nil {
		var err error
		if r, err = c.Render(); err != nil {
			return nil, err
		}
	}
	text, err := json.Marshal(&r.Content)
	if err != nil {
		return nil, err
	}
	if len(text) > MaxContent {
		return nil, ContentTooLarge.New("the message has %d bytes when stored, and at most %d are allowed", len(text),
			MaxContent)
	}
	if err := c.check(&r.Content); err != nil {
		return nil, err
	}
	h := tx.outbox.tenantKeys(c.Tenant)
	m := &created{recipient: c.to, content: r.Content, text: text}
	m.Message = Message{Key: Key{c.Tenant, tx.ID()}, Month: monthOf(tx.recorded), Channel: c.Channel,
		BusinessType: c.BusinessType, BizNo: c.BizNo,
		Template: r.Template, Locale: r.Locale,
		RecipientHash: keyedHash(h.recipient, string(c.Channel), recipient.Same(c.Channel, c.to))[:hashSize],
		RecipientHint: recipient.Mask(c.Channel, c.to), ContentHash: keyedHash(h.content, string(text)),
		Priority:    c.Priority,
		OnUnknown:   cmp.Or(c.OnUnknown, r.OnUnknown, onUnknowns[c.Channel]),
		MaxAttempts: cmp.Or(c.MaxAttempts, r.MaxAttempts, DefaultMaxAttempts), NotBefore: c.NotBefore.UTC(),
		AcceptedAt: tx.recorded, Principal: c.Principal, RequestID: c.RequestID, State: Queued, DueAt: tx.Now}
	if c.Code {
		// Include the id in the hash of a code's content. Otherwise a caller could find the code by sending guesses and
		// comparing hashes.
		m.ContentHash = keyedHash(h.content, string(text), strconv.FormatInt(m.ID, 10))
		m.text = send.SealContent(tx.outbox.Master, m.Tenant, m.ID, text)
	}
	if c.AnyPriority && r.Priority != nil {
		m.Priority = *r.Priority
	}
	if c.NotBefore.After(tx.Now) {
		m.DueAt = m.NotBefore
	}
	m.GiveUpAt = m.DueAt.Add(cmp.Or(min(cmp.Or(c.GiveUpAfter, r.GiveUpAfter), MaxGiveUpAfter), DefaultGiveUpAfter))
	until := tx.Now.Add(cmp.Or(min(c.ContentLife, MaxContentLife), DefaultContentLife))
	if m.GiveUpAt.After(until) {
		until = m.GiveUpAt
	}
	m.ContentsUntil = dayAfter(until)
	if c.name != nil {
		*tx.names.Change(c.name) = name{id: m.ID, hash: c.request, created: &m.Message}
	}
	if window := c.window(); window > 0 {
		m.fingerprint = c.key.hash[:]
		c.setFingerprint(tx, fingerprint{id: m.ID, expiresAt: tx.Now.Add(window), created: &m.Message})
	}
	tx.created = append(tx.created, m)
	tx.byKey[m.Key] = m
	return m, nil
}

// setFingerprint points the fingerprint at the message.
func (c *SendCommand) setFingerprint(tx *Tx, p fingerprint) {
	if c.fingerprint == nil {
		c.fingerprint = tx.fingerprints.Add(c.key, p)
		tx.late[c.key], tx.lates = c.fingerprint, append(tx.lates, c.key)
		return
	}
	v := tx.fingerprints.Change(c.fingerprint)
	p.tid = v.tid
	*v = p
}
