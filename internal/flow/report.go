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

// reportLife is how long received reports are remembered: longer than providers repeat them. Later repeats have no
// effect either, because the recorded state of the message lives longer.
const reportLife = 7 * 24 * time.Hour

// receiveReport receives a provider's report in the inbox and records it in one transaction.
type receiveReport struct {
	receive inbox.ReceiveCommand
	report  notify.ReportCommand
}

// Need names the inbox message and the notification.
func (c *receiveReport) Need(tx *Tx) {
	c.receive.Need(tx.Inbox())
	c.report.Need(tx.Messages())
}

// Apply receives the report, then records it.
func (c *receiveReport) Apply(tx *Tx) (any, error) {
	if _, err := c.receive.Apply(tx.Inbox()); err != nil {
		return nil, err
	}
	answer, err := c.report.Apply(tx.Messages())
	if r, repeat := answer.(commit.Repeat); repeat {
		return r.First, err // the inbox row is new
	}
	return answer, err
}

// Reported returns the submission that receives and records a report.
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
	return Submission{Tenant: p.Tenant, RequestID: requestID, Rows: 3, Bytes: 1024, Command: &receiveReport{
		receive: inbox.ReceiveCommand{Caller: caller,
			Key:      inbox.Key{Tenant: p.Tenant, Group: "notify.reports", ID: id, Part: p.Provider + "/" + kind},
			Delivery: inbox.Delivery{Life: reportLife, MaxAttempts: 1, Backoff: time.Second, MaxBackoff: time.Second}},
		report: notify.ReportCommand{Caller: caller, ID: p.MessageID, Provider: p.Provider,
			ProviderMessageID: p.ProviderMessageID,
			Delivered:         p.Delivered, FailureCode: p.Code, FailureText: p.Text}}}
}

// TakeReports receives reports, each independently. A repeat counts as success, and so does a report on a message that
// no longer exists. It returns the first other error: the provider must repeat its request.
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
