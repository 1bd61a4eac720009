//go:build !linux

package pgtest

// memoryFree returns 0: only Linux has /dev/shm for files.
func memoryFree(string) uint64 { return 0 }
