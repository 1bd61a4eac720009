//go:build !linux

package pg

import "syscall"

// control has nothing to set: keepalives alone notice a silent network.
func control(string, string, syscall.RawConn) error { return nil }
