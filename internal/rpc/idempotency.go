package rpc

import (
	"github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1/idempotencyv1connect"
	"github.com/ledgerd/ledgerd/internal/claim"
)

// Idempotency serves IdempotencyService.
type Idempotency struct {
	*Changes
	Claims *claim.Reader
}

var _ idempotencyv1connect.IdempotencyServiceHandler = (*Idempotency)(nil)
