package rpc

import (
	"github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1/idempotencyv1connect"
)

// Idempotency serves IdempotencyService.
type Idempotency struct{ *Changes }

var _ idempotencyv1connect.IdempotencyServiceHandler = (*Idempotency)(nil)
