package ledgertest

import (
	_ "example.com/shop/internal/ledger"
	_ "example.com/shop/internal/pgtest"
)
