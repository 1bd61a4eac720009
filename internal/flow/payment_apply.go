package flow

import (
	"context"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// noticeRows is about what a notice writes: itself, the payment, two instances with their history, the transfer, and a
// line of the order.
const noticeRows = 12

// CommitNotice applies a notice of a gateway, and commits its effect. If the order or the ledger refuses the money, the
// money goes to suspense; if the suspense account refuses it too, it is flagged only. So no verified notice is lost.
// Each try is a submission of its own: a refusal must not rest on an attempt that was rolled back.
func CommitNotice(ctx context.Context, e *Engine, k payment.GatewayKey, n payment.Received, cred gateway.Credential,
	requestID string) (NoticeResult, error) {
	caller := gatewayCaller(k, requestID)
	n = storable(n)
	var refused *fault.Fault
	for unposted := false; ; {
		out, err := e.Do(ctx, Submission{Tenant: k.Tenant, RequestID: requestID, Rows: noticeRows,
			Bytes: 2048 + len(n.Body), Command: &ApplyNotice{Caller: caller, Gateway: k.Gateway, Received: n,
				Credential: cred, Refused: refused, Unposted: unposted}})
		if err == nil {
			return out.Answer.(NoticeResult), nil
		}
		f := fault.Of(err)
		switch {
		case f == nil, f.Reason.Class == fault.System, f.Reason.Class == fault.Conflict,
			n.Kind != gateway.Paid && n.Kind != gateway.Refunded:
			return NoticeResult{}, err
		case refused == nil:
			refused = f
		case !unposted:
			unposted = true
		default:
			return NoticeResult{}, err
		}
	}
}

// gatewayCaller is the caller of commands that a gateway causes.
func gatewayCaller(k payment.GatewayKey, requestID string) commit.Caller {
	return commit.Caller{Tenant: k.Tenant, Principal: "gateway:" + k.Gateway, RequestID: requestID}
}

// storable returns the notice without its time if no response could contain that time.
func storable(n payment.Received) payment.Received {
	if y := n.At.UTC().Year(); y < 1 || y > 9999 {
		n.At = time.Time{}
	}
	return n
}

// FlagUnknowns returns the submissions that flag the money of payments that were not created in time.
func FlagUnknowns(due []payment.DueFlag, requestID string) (commands []Submission) {
	for _, d := range due {
		caller := commit.Caller{Tenant: d.Tenant, Principal: requestID, RequestID: requestID}
		commands = append(commands, Submission{Tenant: d.Tenant, Rows: noticeRows,
			Command: &FlagUnknown{Caller: caller, Key: d.Key}})
	}
	return commands
}
