package flow

import (
	"context"
	"fmt"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/inbox"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/report"
)

// keepReports is how long a report is known as one that was received: longer than any provider posts it again. What it
// changed is there for longer, so that one that comes later changes nothing either.
const keepReports = 7 * 24 * time.Hour

// reported is a provider's report: received in the inbox and written down in one.
type reported struct {
	receive inbox.ReceiveCommand
	report  notify.ReportCommand
}

// Need names both.
func (c *reported) Need(tx *Tx) {
	c.receive.Need(tx.Inbox())
	c.report.Need(tx.Messages())
}

// Apply receives it, then writes it down.
func (c *reported) Apply(tx *Tx) (any, error) {
	if _, err := c.receive.Apply(tx.Inbox()); err != nil {
		return nil, err
	}
	answer, err := c.report.Apply(tx.Messages())
	if r, repeat := answer.(commit.Repeat); repeat {
		return r.First, err // the inbox row is new
	}
	return answer, err
}

// Reported makes the command that takes a report in.
func Reported(p report.Placed, requestID string) Submission {
	caller := commit.Caller{Tenant: p.Tenant, Principal: "provider:" + p.Provider, RequestID: requestID}
	kind := "undelivered"
	if p.Delivered {
		kind = "delivered"
	}
	id := p.ProviderMessageID
	if p.MessageID != 0 {
		id = p.Key
	}
	return Submission{Tenant: p.Tenant, RequestID: requestID, Rows: 3, Bytes: 1024, Command: &reported{
		receive: inbox.ReceiveCommand{Caller: caller,
			Key:      inbox.Key{Tenant: p.Tenant, Group: "notify.reports", ID: id, Part: p.Provider + "/" + kind},
			Delivery: inbox.Delivery{Keep: keepReports, MaxAttempts: 1, Backoff: time.Second, MaxBackoff: time.Second}},
		report: notify.ReportCommand{Caller: caller, ID: p.MessageID, Provider: p.Provider,
			ProviderMessageID: p.ProviderMessageID,
			Delivered:         p.Delivered, Code: p.Code, Error: p.Text}}}
}

// TakeReports takes reports in, each for itself. A repeat is done with, and so is one about a message of ours that is
// not there any more; its error is that of the first that has to come again.
func TakeReports(ctx context.Context, e *Engine, requestID string, reports []report.Placed) error {
	submissions := make([]Submission, len(reports))
	for i, p := range reports {
		submissions[i] = Reported(p, requestID)
	}
	for i, r := range e.DoAll(ctx, submissions) {
		gone := reports[i].MessageID != 0 && fault.Is(r.Err, notify.NotFound)
		if r.Err != nil && !gone && !fault.Is(r.Err, inbox.Duplicate) {
			return fmt.Errorf("report %d of %d: %w", i+1, len(reports), r.Err)
		}
	}
	return nil
}
