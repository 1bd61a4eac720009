package flow

import (
	_ "example.com/shop/gen/shop/v1" // want proto-import
	_ "example.com/shop/internal/ledger"
	_ "example.com/shop/internal/rpc" // want import-direction
	_ "example.com/shop/internal/stock"
)
