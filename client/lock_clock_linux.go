package client

import (
	"time"

	"golang.org/x/sys/unix"
)

// monotonic is a monotonic clock that includes the time the machine sleeps.
func monotonic() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic("client: no clock: " + err.Error()) // available since Linux 2.6.39
	}
	return time.Duration(t.Nano())
}
