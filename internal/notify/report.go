package notify

import (
	"github.com/ledgerd/ledgerd/internal/commit"
)

// ReportCommand writes down what a provider, or a person who asked there, says became of a message. Its answer is
// a *Message.
type ReportCommand struct {
	commit.Caller
	ID                int64  // 0: by the provider's number
	Provider          string // as named in the configuration
	ProviderMessageID string
	Delivered         bool
	Code, Error       string // why not

	row *queueRow
}

// Need names the message.
func (c *ReportCommand) Need(tx *Tx) {
	if c.row = nil; c.ID != 0 {
		c.row = tx.change(Key{c.Tenant, c.ID})
	}
	if !tx.started() {
		tx.reports = append(tx.reports, c)
	}
}

// Apply writes the report down, unless it is what the last one said. That it arrived ends everything. That it did not
// arrive settles what is unknown: else an attempt that is still to come may fare better. Returns fault
// NOTIFY_NOT_FOUND.
func (c *ReportCommand) Apply(tx *Tx) (any, error) {
	if c.row == nil && c.ID != 0 {
		return nil, tx.unasked(Key{c.Tenant, c.ID})
	}
	if c.row == nil {
		return nil, NotFound.New("there is no message with provider %s and provider_message_id %q", c.Provider,
			c.ProviderMessageID)
	}
	m, err := tx.find(c.row)
	if err != nil {
		return nil, err
	}
	kind := Undelivered
	if c.Delivered {
		kind = Delivered
	}
	settles := c.row.Found && !c.row.Value.gone && (c.Delivered || m.State == Unknown)
	if m.reported == kind && !settles || m.State == Cancelled {
		return commit.Repeat{First: m}, nil
	}
	v := tx.queue.Change(c.row)
	v.reported = kind
	if settles || !m.open() {
		v.state, v.gone = kind, true
		m.State, m.Provider, m.Code = kind, c.Provider, c.Code
	}
	tx.events = append(tx.events, event{Key: m.Key, by: c.Caller, month: m.Month, kind: kind, provider: c.Provider,
		providerID: c.ProviderMessageID,
		code:       c.Code, error: c.Error})
	return m, nil
}
