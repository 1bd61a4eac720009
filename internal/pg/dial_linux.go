package pg

import (
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// control sets TCP_USER_TIMEOUT (RFC 5482).
func control(network, _ string, c syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	var err error
	if e := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds()))
	}); e != nil {
		return e
	}
	return err
}
