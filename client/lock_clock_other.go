//go:build !linux

package client

import "time"

var begin = time.Now()

// monotonic is a clock that nobody can set.
func monotonic() time.Duration { return time.Since(begin) }
