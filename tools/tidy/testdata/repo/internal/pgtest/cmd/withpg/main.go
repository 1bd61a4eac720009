package main

import (
	_ "example.com/shop/gen/shop/v1" // want proto-import
	_ "example.com/shop/internal/errdoc"
	_ "example.com/shop/internal/pgtest"
)
