package client

import (
	"time"

	"golang.org/x/sys/unix"
)

// monotonic is a clock that nobody can set, and that also counts the time that the machine sleeps.
func monotonic() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic("client: no clock: " + err.Error()) // Linux has had it since 2.6.39
	}
	return time.Duration(t.Nano())
}
