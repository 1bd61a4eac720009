// Package rpc has the thin adapters between Connect and the commands: decode, run, encode. Only this package and the
// client use protobuf. The methods of the services are documented in the .proto files.
package rpc

import (
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// Ledger serves LedgerService.
type Ledger struct {
	*Mutations
	Reader *ledger.Reader
	// Tail serves the streams of entries.
	Tail *ledger.Tail
	// Closing ends streams when closed.
	Closing <-chan struct{}
}
