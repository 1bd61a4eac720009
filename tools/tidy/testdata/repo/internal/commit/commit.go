package commit

import (
	_ "example.com/shop/internal/ledger" // want import-direction
	_ "example.com/shop/internal/lock"
	_ "example.com/shop/internal/pg"
)
