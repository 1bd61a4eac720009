package pgtest

import "syscall"

const tmpfsMagic = 0x01021994

// memoryFree returns the free bytes of a file system in memory, and 0 if the directory is not on one.
func memoryFree(dir string) uint64 {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil || int64(fs.Type) != tmpfsMagic {
		return 0
	}
	return fs.Bavail * uint64(fs.Bsize)
}
