package client_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/ledgerd/ledgerd/client"
)

// One of several workers writes the report and passes its fence to the storage.
func ExampleClient_WithLock() {
	url, end := exampleLedger()
	defer end()
	c := client.New(url)
	defer c.Close()

	write := func(ctx context.Context, _ int64) error { // docs/sql/fence.sql checks the fence in your own database
		fmt.Println("written, and still the holder:", ctx.Err() == nil)
		return nil
	}
	err := c.WithLock(context.Background(), "reports", func(ctx context.Context, fence int64) error {
		_, busy := c.Lock(ctx, "reports", client.LockWait(0))
		fmt.Println("another worker:", errors.Is(busy, client.ReasonLockHeld))
		return write(ctx, fence)
	}, client.LockHolder("worker-1"))
	fmt.Println(err)
	// Output:
	// another worker: true
	// written, and still the holder: true
	// <nil>
}
