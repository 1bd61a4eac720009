package main

import (
	_ "example.com/shop/client"
	_ "example.com/shop/gen/shop/v1"
	_ "example.com/shop/internal/localpg"
	_ "example.com/shop/internal/server"
	_ "github.com/golang/mock/gomock" // want mock-library
)
