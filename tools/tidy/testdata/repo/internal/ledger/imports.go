package ledger

import (
	_ "fmt"

	_ "example.com/shop/gen/shop/v1" // want proto-import
	_ "example.com/shop/internal/commit"
	_ "example.com/shop/internal/fault"
	_ "example.com/shop/internal/flow" // want import-direction
	_ "example.com/shop/internal/ledger/internal/db"
	_ "example.com/shop/internal/ledgerish" // want domain-import
	_ "example.com/shop/internal/pgtest"    // want import-direction
	_ "example.com/shop/internal/stock"     // want domain-import
	_ "example.com/shopping/internal/flow"
)
