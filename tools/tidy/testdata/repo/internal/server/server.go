package server

import (
	_ "example.com/shop/cmd/shopd/flags" // want import-direction
	_ "example.com/shop/gen/shop/v1"
	_ "example.com/shop/internal/rpc"
)
