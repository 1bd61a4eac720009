package load

import (
	"context"
	"time"

	"connectrpc.com/connect"

	"github.com/ledgerd/ledgerd/client"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
)

// clientCaller calls through our own Go client. All callers share one client, as the goroutines of a
// program do: that is what lets it gather their calls.
type clientCaller struct {
	client   transferrer
	maker    *maker
	patience time.Duration
}

// transferrer is the one call of the client that is measured.
type transferrer interface {
	Transfer(context.Context, *ledgerv1.TransferRequest) (*ledgerv1.TransferResponse, error)
}

func (c *clientCaller) close() {}

func (c *clientCaller) call() outcome {
	t := c.maker.make()
	ctx, cancel := context.WithTimeout(context.Background(), c.patience)
	defer cancel()
	_, err := c.client.Transfer(ctx, &ledgerv1.TransferRequest{BizNo: string(t.bizNo[:]), Postings: []*ledgerv1.Posting{
		{From: string(t.from[:]), To: string(t.to[:]), Asset: Asset, Amount: string(t.amount[:])}}})
	if err == nil {
		return outcome{succeeded: 1}
	}
	switch connect.CodeOf(err) {
	case connect.CodeUnknown, connect.CodeInternal, connect.CodeUnavailable, connect.CodeDeadlineExceeded,
		connect.CodeCanceled,
		connect.CodeDataLoss:
		return outcome{unknown: 1, err: err}
	}
	return outcome{refused: 1, err: err}
}

// newClient makes the client as its users do.
func newClient(spec *Spec) transferrer {
	options := []client.Option{client.WithAPIKey(spec.APIKey)}
	if spec.Gather {
		options = append(options, client.WithGather())
	}
	return client.New(spec.URL, options...).Ledger
}
