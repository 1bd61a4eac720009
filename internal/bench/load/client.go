package load

import (
	"context"
	"time"

	"connectrpc.com/connect"

	"github.com/ledgerd/ledgerd/client"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
)

// clientCaller calls through the Go client. All callers share one client, like the goroutines of a program, so
// that it can batch their calls.
type clientCaller struct {
	client   transferrer
	maker    *maker
	patience time.Duration
}

// transferrer is the measured call of the client.
type transferrer interface {
	Transfer(context.Context, *ledgerv1.TransferRequest) (*ledgerv1.TransferResponse, error)
}

func (c *clientCaller) close() {}

func (c *clientCaller) call() Outcome {
	t := c.maker.make()
	ctx, cancel := context.WithTimeout(context.Background(), c.patience)
	defer cancel()
	_, err := c.client.Transfer(ctx, &ledgerv1.TransferRequest{BizNo: string(t.bizNo[:]), Postings: []*ledgerv1.Posting{
		{From: string(t.from[:]), To: string(t.to[:]), Asset: Asset, Amount: string(t.amount[:])}}})
	if err == nil {
		return Outcome{Succeeded: 1}
	}
	switch connect.CodeOf(err) {
	case connect.CodeUnknown, connect.CodeInternal, connect.CodeUnavailable, connect.CodeDeadlineExceeded,
		connect.CodeCanceled,
		connect.CodeDataLoss:
		return Outcome{Unknown: 1, Err: err}
	}
	return Outcome{Refused: 1, Err: err}
}

// newClient makes the client like its users do.
func newClient(spec *Spec) transferrer {
	options := []client.Option{client.WithAPIKey(spec.APIKey)}
	if spec.Gather {
		options = append(options, client.WithGather())
	}
	return client.New(spec.URL, options...).Ledger
}
