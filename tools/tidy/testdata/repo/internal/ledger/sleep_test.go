package ledger

import (
	"time"

	_ "example.com/shop/gen/shop/v1"
	_ "example.com/shop/internal/stock"
)

func waits() {
	time.Sleep(time.Second) // want test-sleep
	pause := time.Sleep     // want test-sleep
	pause(0)
}

// Test functions may be longer, but the file limit applies.
func longInTest() {
	_ = 1
	_ = 2
	_ = 3
	_ = 4
	_ = 5

	_ = 6
	_ = 7
	_ = 8 // want file-length
	_ = 9
}
