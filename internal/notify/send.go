package notify

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/notify/email"
	"github.com/ledgerd/ledgerd/internal/notify/recipient"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
)

// Params is a message as asked for. Zero values take the defaults.
type Params struct {
	Channel   send.Channel
	Recipient string // as the caller writes it
	// Content is what it says. With Render it is written when the command runs: then Identity tells before what it
	// will say, such as the name of a template and the variables. Of one Identity there is one message within the
	// repeat window, and one biz_no has one for ever, whatever a template says meanwhile.
	Content  send.Content
	Render   func() (Rendered, error)
	Identity []byte
	// Template writes the content, in the place of all these.
	Template *Templated

	BusinessType string
	BizNo        string
	Priority     int16     // High, Normal, Low: no default
	AnyPriority  bool      // a template may have another
	NotBefore    time.Time // zero: at once
	GiveUpAfter  time.Duration
	ContentLife  time.Duration
	OnUnknown    string
	MaxAttempts  int32
	RepeatWindow *time.Duration // 0: no repeat is recognised by its content
	ClientIP     string         // of who the caller acts for; empty: not told
	Code         bool           // a verification code: limits of codes count it too, and what it says is kept sealed
}

// Rendered is what Params.Render has written. All but the first three are for what the Params leave open.
type Rendered struct {
	Content     send.Content
	Template    string // name@version
	Locale      string
	OnUnknown   string
	Priority    *int16 // of Params.AnyPriority
	MaxAttempts int32
	GiveUpAfter time.Duration
}

// Defaults and bounds.
const (
	DefaultGiveUpAfter = 24 * time.Hour
	DefaultContentLife = 48 * time.Hour
	DefaultMaxAttempts = 10
	// MostAhead is how far ahead a message may be put off, and MostGiveUpAfter how long it may be tried then: together
	// with a day they stay below the 70 days for which there are partitions of contents.
	MostAhead       = 30 * 24 * time.Hour
	MostGiveUpAfter = 7 * 24 * time.Hour
	MostContentLife = 30 * 24 * time.Hour
	// MostContent is how large a message may be, as it is kept.
	MostContent = 1 << 20
)

// repeatWindows are the defaults of RepeatWindow.
var repeatWindows = map[send.Channel]time.Duration{send.SMS: time.Hour, send.Email: 24 * time.Hour,
	send.Push: time.Hour}

// onUnknowns are the defaults of OnUnknown: resend where the receiver knows the key of a message.
var onUnknowns = map[send.Channel]string{send.SMS: Park, send.Email: Park, send.Push: Resend, send.Webhook: Resend}

// SendCommand accepts a message. Its answer is a *Message. Another command hangs a message on itself by calling its
// Need and Apply from its own: an error of Apply, such as NOTIFY_LIMITED, then refuses both.
type SendCommand struct {
	commit.Caller
	Params

	err     error // of what was asked for
	name    *nameRow
	print   *printRow
	key     printKey // of print
	to      string   // the recipient in its normal form
	request []byte   // hash of what was asked for
	address string   // as of addressOf
	limited limited
}

// Need names the biz_no, the fingerprint and the counters.
func (c *SendCommand) Need(tx *Tx) {
	c.name, c.print = nil, nil
	if c.Template != nil {
		c.Template.Tenant, c.Template.Channel = c.Tenant, c.Channel
		c.Template.need(tx, &c.Params)
	}
	if c.err = c.prepare(tx.outbox); c.err != nil {
		return
	}
	c.limited = limited{tenant: c.Tenant, channel: c.Channel, to: c.to, address: c.address, code: c.Code}
	if tx.started() {
		c.needLate(tx)
		return
	}
	if c.BizNo != "" {
		c.name = tx.names.Want(nameKey{c.Tenant, c.BizNo})
	}
	if c.window() > 0 {
		c.print = tx.prints.Want(c.key)
	}
	tx.sends = append(tx.sends, &c.limited)
}

// needLate is Need when rows can no longer be asked for, as in an Execute whose references have just been filled in.
// The sample that stood for the message until then has named all but its fingerprint, because what a message says is
// all that a reference can change. What that is now, is not looked for: it is inserted, and if it was there the batch
// runs again, where the command as it is now comes first.
func (c *SendCommand) needLate(tx *Tx) {
	c.limited.apply(tx.outbox, tx.limits[c.Tenant], tx.counters.Known)
	c.name = tx.names.Known(nameKey{c.Tenant, c.BizNo})
	if c.window() == 0 {
		return
	}
	if r := tx.prints.Known(c.key); r != nil {
		c.print = r
	} else {
		c.print = tx.late[c.key]
	}
}

// prepare reads what was asked for.
func (c *SendCommand) prepare(o *Outbox) (err error) {
	if err := o.Master.Check(); err != nil {
		return err
	}
	if c.to, err = recipient.Parse(c.Channel, c.Recipient, o.Region); err != nil {
		return fault.FieldInvalid.New("the recipient %s", err).WithField("recipient", err.Error())
	}
	c.address = ""
	if c.ClientIP != "" {
		if c.address, err = addressOf(c.ClientIP); err != nil {
			return fault.FieldInvalid.New("client_ip: must be an IP address").WithField("client_ip",
				"must be an IP address")
		}
	}
	says := c.Identity
	if c.Render == nil {
		if says, err = json.Marshal(&c.Content); err != nil {
			return err
		}
	}
	h, same := o.hashing(c.Tenant), recipient.Same(c.Channel, c.to)
	c.request = keyed(h.request, string(c.Channel), same, c.BusinessType, string(says))
	c.key = printKey{c.Tenant, c.Channel, [hashSize]byte(keyed(h.fingerprint, same, string(says), c.BusinessType))}
	return nil
}

func (c *SendCommand) window() time.Duration {
	if c.RepeatWindow != nil {
		return *c.RepeatWindow
	}
	return repeatWindows[c.Channel]
}

// Apply accepts the message, or answers the first one. Returns faults FIELD_INVALID, SECRET_NOT_CONFIGURED,
// NOTIFY_BIZ_NO_EXISTS_DIFFERENT, NOTIFY_LIMITED, NOTIFY_CONTENT_TOO_LARGE, and what Render returns.
func (c *SendCommand) Apply(tx *Tx) (any, error) {
	if c.err != nil {
		return nil, c.err
	}
	// never of an Execute: its samples name them
	if c.BizNo != "" && c.name == nil || slices.Contains(c.limited.counters, nil) {
		return nil, commit.ErrMoreRows
	}
	if c.name != nil && c.name.Exists {
		first, err := c.taken(tx)
		if err != nil {
			return nil, err
		}
		tx.repeats = append(tx.repeats, tally{c.Channel, "biz_no"})
		return commit.Repeat{First: first}, nil
	}
	if first := c.repeat(tx); first != nil {
		if c.name != nil { // it is this message's for ever, also when the window is over
			*tx.names.Change(c.name) = name{id: first.ID, hash: c.request, made: c.print.Value.made}
		}
		tx.repeats = append(tx.repeats, tally{c.Channel, "fingerprint"})
		return commit.Repeat{First: first}, nil
	}
	if err := c.limited.count(tx); err != nil {
		return nil, err
	}
	m, err := c.make(tx)
	if err != nil {
		return nil, err
	}
	return &m.Message, nil
}

// Count counts the message for limits, in the place of Apply, and sends nothing. Returns fault NOTIFY_LIMITED.
func (c *SendCommand) Count(tx *Tx) error {
	if c.err != nil {
		return c.err
	}
	if slices.Contains(c.limited.counters, nil) {
		return commit.ErrMoreRows
	}
	return c.limited.count(tx)
}

// taken is the message that has the biz_no. Returns fault NOTIFY_BIZ_NO_EXISTS_DIFFERENT when it is another one.
func (c *SendCommand) taken(tx *Tx) (*Message, error) {
	n := &c.name.Value
	first := n.made
	if first == nil {
		first = tx.message(Key{c.Tenant, n.id})
	}
	if bytes.Equal(n.hash, c.request) {
		if first == nil { // its proof is gone
			first = &Message{Key: Key{c.Tenant, n.id}, Channel: c.Channel, BusinessType: c.BusinessType, BizNo: c.BizNo}
		}
		return first, nil
	}
	f := BizNoExistsDifferent.New("biz_no %s is already used by another message", c.BizNo).With("biz_no",
		c.BizNo).With("first_id", n.id)
	if first != nil {
		f = f.With("differs", strings.Join(c.differences(tx.outbox, first), ",")).With("state", first.State)
	}
	return nil, f
}

// differences names the fields in which a request differs from the message that has its biz_no.
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
		fields = append(fields, "content")
	}
	return fields
}

func (c *SendCommand) contentHash(o *Outbox, content *send.Content) []byte {
	text, err := json.Marshal(content)
	if err != nil {
		return nil
	}
	return keyed(o.hashing(c.Tenant).content, string(text))
}

// repeat is the first message of which this one is a repeat, or nil. One that will not be sent frees its fingerprint.
func (c *SendCommand) repeat(tx *Tx) *Message {
	if c.print == nil || !c.print.Exists || !c.print.Value.expiresAt.After(tx.now) {
		return nil
	}
	v := &c.print.Value
	if v.made != nil {
		return v.made
	}
	m := tx.message(Key{c.Tenant, v.id})
	if m == nil || m.State == Dead || m.State == Cancelled {
		return nil
	}
	return m
}

// made is a message that the batch makes.
type made struct {
	Message
	fingerprint []byte
	recipient   string
	content     send.Content
	text        []byte // of content, as it is kept
}

func (c *SendCommand) make(tx *Tx) (*made, error) {
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
	if len(text) > MostContent {
		return nil, ContentTooLarge.New("the message has %d bytes when stored, and at most %d are allowed", len(text),
			MostContent)
	}
	switch c.Channel {
	case send.Email:
		err = email.Check(&r.Content)
	case send.Webhook:
		err = webhook.Check(&r.Content)
	}
	if err != nil {
		return nil, fault.FieldInvalid.New("%s", err).WithField("content", err.Error())
	}
	h := tx.outbox.hashing(c.Tenant)
	m := &made{recipient: c.to, content: r.Content, text: text}
	m.Message = Message{Key: Key{c.Tenant, tx.newID()}, Month: monthOf(tx.recorded), Channel: c.Channel,
		BusinessType: c.BusinessType, BizNo: c.BizNo,
		Template: r.Template, Locale: r.Locale,
		RecipientHash: keyed(h.recipient, string(c.Channel), recipient.Same(c.Channel, c.to))[:hashSize],
		RecipientHint: recipient.Mask(c.Channel, c.to), ContentHash: keyed(h.content, string(text)),
		Priority:    c.Priority,
		OnUnknown:   cmp.Or(c.OnUnknown, r.OnUnknown, onUnknowns[c.Channel]),
		MaxAttempts: cmp.Or(c.MaxAttempts, r.MaxAttempts, DefaultMaxAttempts), NotBefore: c.NotBefore.UTC(),
		AcceptedAt: tx.recorded, Principal: c.Principal, RequestID: c.RequestID, State: Queued, DueAt: tx.now}
	if c.Code {
		// Else a code could be told by it: who may send has texts of his own hashed.
		m.ContentHash = keyed(h.content, string(text), strconv.FormatInt(m.ID, 10))
		m.text = send.SealContent(tx.outbox.Master, m.Tenant, m.ID, text)
	}
	if c.AnyPriority && r.Priority != nil {
		m.Priority = *r.Priority
	}
	if c.NotBefore.After(tx.now) {
		m.DueAt = m.NotBefore
	}
	if m.DueAt.Sub(tx.now) > MostAhead {
		return nil, fault.FieldInvalid.New("not_before: must be at most %v in the future",
			MostAhead).WithField("not_before", "must be at most 30 days in the future")
	}
	m.GiveUpAt = m.DueAt.Add(cmp.Or(min(cmp.Or(c.GiveUpAfter, r.GiveUpAfter), MostGiveUpAfter), DefaultGiveUpAfter))
	until := tx.now.Add(cmp.Or(min(c.ContentLife, MostContentLife), DefaultContentLife))
	if m.GiveUpAt.After(until) {
		until = m.GiveUpAt
	}
	m.ContentsUntil = dayAfter(until)
	if c.name != nil {
		*tx.names.Change(c.name) = name{id: m.ID, hash: c.request, made: &m.Message}
	}
	if window := c.window(); window > 0 {
		m.fingerprint = c.key.hash[:]
		c.takePrint(tx, print{id: m.ID, expiresAt: tx.now.Add(window), made: &m.Message})
	}
	tx.made = append(tx.made, m)
	return m, nil
}

// takePrint gives the fingerprint to the message.
func (c *SendCommand) takePrint(tx *Tx, p print) {
	if c.print == nil {
		c.print = tx.prints.Add(c.key, p)
		tx.late[c.key], tx.lates = c.print, append(tx.lates, c.key)
		return
	}
	v := tx.prints.Change(c.print)
	p.tid = v.tid
	*v = p
}
