package flow

import (
	"context"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// KeepNotice stores a notice of a gateway that is about no known payment. It moves no money. Its answer is a
// NoticeResult.
type KeepNotice struct {
	commit.Caller
	Gateway string
	payment.Received
	Verdict payment.Verdict
	Detail  string

	notice *payment.NoticeRow
}

// Need names the notice.
func (c *KeepNotice) Need(tx *Tx) {
	c.notice = tx.Payments().WantNotice(payment.NoticeKey{Tenant: c.Tenant, Gateway: c.Gateway, ID: c.Received.ID})
}

// Apply stores the notice, once.
func (c *KeepNotice) Apply(tx *Tx) (any, error) {
	if c.notice.Exists {
		return NoticeResult{Done: true, Verdict: c.notice.Value.Verdict, Existed: true}, nil
	}
	tx.Payments().Record(c.notice, &c.Received, c.Verdict, c.Detail, c.RequestID)
	return NoticeResult{Done: true, Verdict: c.Verdict}, nil
}

// Keep commits a notice of a gateway that is about no known payment.
func Keep(ctx context.Context, e *Engine, k payment.GatewayKey, n payment.Received, v payment.Verdict, detail,
	requestID string) (NoticeResult, error) {
	out, err := e.Do(ctx, Submission{Tenant: k.Tenant, RequestID: requestID, Rows: 2, Bytes: 2048 + len(n.Body),
		Command: &KeepNotice{Caller: gatewayCaller(k, requestID), Gateway: k.Gateway, Received: storable(n), Verdict: v,
			Detail: detail}})
	if err != nil {
		return NoticeResult{}, err
	}
	return out.Answer.(NoticeResult), nil
}
