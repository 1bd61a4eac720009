package notify

import (
	"github.com/ledgerd/ledgerd/internal/commit"
)

// ReportCommand records a delivery report, from a provider or from an operator who asked the provider. Its answer is a
// *Message.
type ReportCommand struct {
	commit.Caller
	ID                       int64  // 0: look up by Provider and ProviderMessageID
	Provider                 string // as named in the configuration
	ProviderMessageID        string
	Delivered                bool
	FailureCode, FailureText string // reason of a failed delivery

	row *queueRow
}

func (c *ReportCommand) Need(tx *Tx) {
	if c.row = nil; c.ID != 0 {
		c.row = tx.openRow(Key{c.Tenant, c.ID})
	}
	if !tx.started() {
		tx.reports = append(tx.reports, c)
	}
}

// Apply records the report, unless it equals the last one. Delivered decides any open message. Undelivered decides only
// an unknown one, because other open messages may still have a successful attempt. Returns fault NOTIFY_NOT_FOUND.
func (c *ReportCommand) Apply(tx *Tx) (any, error) {
	if c.row == nil && c.ID != 0 {
		return nil, tx.notRequested(Key{c.Tenant, c.ID})
	}
	if c.row == nil {
		return nil, NotFound.New("there is no message with provider %s and provider_message_id %q", c.Provider,
			c.ProviderMessageID).With("provider", c.Provider).With("provider_message_id", c.ProviderMessageID)
	}
	m, err := tx.find(c.row)
	if err != nil {
		return nil, err
	}
	kind := Undelivered
	if c.Delivered {
		kind = Delivered
	}
	decides := c.row.Found && !c.row.Value.gone && (c.Delivered || m.State == Unknown)
	if m.reported == kind && !decides || m.State == Cancelled {
		return commit.Repeat{First: m}, nil
	}
	v := tx.queue.Change(c.row)
	v.reported = kind
	if decides || !m.open() {
		v.state, v.gone = kind, true
		m.State, m.Provider, m.FailureCode = kind, c.Provider, c.FailureCode
	}
	tx.note(event{Key: m.Key, by: c.Caller, month: m.Month, kind: kind, provider: c.Provider,
		providerID: c.ProviderMessageID, failureCode: c.FailureCode, failureText: c.FailureText})
	return m, nil
}
