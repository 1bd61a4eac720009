//go:build !linux

package client

import "time"

var begin = time.Now()

// monotonic is a monotonic clock.
func monotonic() time.Duration { return time.Since(begin) }
