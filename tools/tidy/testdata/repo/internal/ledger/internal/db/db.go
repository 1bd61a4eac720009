package db

import (
	_ "example.com/shop/internal/fault"
	_ "example.com/shop/internal/stock" // want domain-import
)
