//go:build !linux

package pg

import "syscall"

// control does nothing: only keepalives detect a silent network.
func control(string, string, syscall.RawConn) error { return nil }
