// Package rpc is the thin layer between Connect and the commands: decode, run, encode. Besides the
// client it is the only place that sees protobuf.
package rpc

import (
	"google.golang.org/protobuf/proto"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// Ledger serves LedgerService.
type Ledger struct {
	*Mutations
	Reader *ledger.Reader
	// Closing ends streams when it is closed.
	Closing <-chan struct{}
}

var _ ledgerv1connect.LedgerServiceHandler = (*Ledger)(nil)

func (c *call) caller() ledger.Caller {
	return ledger.Caller{Tenant: c.identity.Tenant, Principal: c.identity.Principal, RequestID: c.requestID}
}

// updateAccount is the change behind the four calls that change an account.
func updateAccount[R proto.Message](caller *call, code, asset string, c ledger.AccountChange,
	wrap func(*ledgerv1.Account) R) mutation[R] {
	return mutation[R]{
		command: flow.Ledger(&ledger.UpdateAccountCommand{Caller: caller.caller(), Code: code, Asset: asset,
			Change: c}),
		render: func(answer any, _ bool) (R, error) { return wrap(renderAccount(answer.(*ledger.Account))), nil }}
}
