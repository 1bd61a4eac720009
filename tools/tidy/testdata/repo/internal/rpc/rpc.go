package rpc

import (
	_ "example.com/shop/client" // want import-direction
	_ "example.com/shop/gen/shop/v1"
	_ "example.com/shop/internal/flow"
	_ "example.com/shop/internal/ledger"
	_ "example.com/shop/internal/server" // want import-direction
)
