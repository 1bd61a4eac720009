//go:build !linux

package bench

import (
	"os"
	"runtime"
	"syscall"
	"time"
)

// Without /proc there is throughput and latency, but CPU time and memory are zero.

func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func cpuOf(int) time.Duration { return 0 }

func runtimeOf(int) time.Duration { return 0 }

func cpuOfFamily(int) time.Duration { return 0 }

func cpuOfMachine() (busy, stolen time.Duration) { return 0, 0 }

func forgetPeak(int) {}

func peakMemory(int) int64 { return 0 }

func memoryOfMachine() int64 { return 0 }

func processorModel() string { return runtime.GOARCH }

func kernel() string { return runtime.GOOS }

func isMemory(string) bool { return false }

func dataSync(f *os.File) error { return f.Sync() }
