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
