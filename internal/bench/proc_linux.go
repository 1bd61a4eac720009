package bench

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// childAttributes protect a child from ctrl-C and have the kernel end it when this process dies.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// tick is the unit of CPU time in /proc: 100 per second on every architecture that Go supports.
const tick = 10 * time.Millisecond

// proc is /proc. Its errors give zeros: a dead process, for example, uses no CPU time.
var proc, _ = procfs.NewDefaultFS()

func statOf(pid int) (procfs.ProcStat, error) {
	p, err := proc.Proc(pid)
	if err != nil {
		return procfs.ProcStat{}, err
	}
	return p.Stat()
}

// ownTime and childTime are user and system time of a process, and of its children that have ended.
func ownTime(s procfs.ProcStat) time.Duration   { return time.Duration(s.UTime+s.STime) * tick }
func childTime(s procfs.ProcStat) time.Duration { return time.Duration(s.CUTime+s.CSTime) * tick }

// cpuOf is the CPU time used by a process.
func cpuOf(pid int) time.Duration {
	s, _ := statOf(pid)
	return ownTime(s)
}

// runtimeOf is the CPU time used by a process of one thread, exact to the nanosecond.
func runtimeOf(pid int) time.Duration {
	p, err := proc.Proc(pid)
	if err != nil {
		return 0
	}
	s, _ := p.Schedstat()
	return time.Duration(s.RunningNanoseconds)
}

// cpuOfFamily is the CPU time of a process and its children, including ended ones. It reads again if a child
// ended meanwhile, because its time might be missing.
func cpuOfFamily(pid int) time.Duration {
	for {
		before, err := statOf(pid)
		if err != nil {
			return 0
		}
		sum := ownTime(before) + childTime(before)
		all, _ := proc.AllProcs()
		for _, p := range all {
			if s, err := p.Stat(); err == nil && s.PPID == pid {
				sum += ownTime(s) + childTime(s)
			}
		}
		if after, err := statOf(pid); err != nil || childTime(after) == childTime(before) {
			return sum
		}
	}
}

// cpuOfMachine is the CPU time of all processes, and the time stolen by the hypervisor.
func cpuOfMachine() (busy, stolen time.Duration) {
	s, _ := proc.Stat()
	seconds := func(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
	return seconds(s.CPUTotal.User + s.CPUTotal.Nice + s.CPUTotal.System), seconds(s.CPUTotal.Steal)
}

// forgetPeak resets the kernel's peak memory of a process.
func forgetPeak(pid int) {
	// On failure the peak counts from the process's start.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

// peakMemory is the peak resident memory in bytes.
func peakMemory(pid int) int64 {
	p, err := proc.Proc(pid)
	if err != nil {
		return 0
	}
	s, _ := p.NewStatus()
	return int64(s.VmHWM)
}

func memoryOfMachine() int64 {
	m, err := proc.Meminfo()
	if err != nil || m.MemTotalBytes == nil {
		return 0
	}
	return int64(*m.MemTotalBytes)
}

func processorModel() string {
	all, err := proc.CPUInfo()
	if err != nil || len(all) == 0 {
		return ""
	}
	return all[0].ModelName
}

func kernel() string {
	text, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return "Linux " + strings.TrimSpace(string(text))
}

// isMemory reports whether a directory is in memory.
func isMemory(dir string) bool {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return false
	}
	return uint32(s.Type) == unix.TMPFS_MAGIC || uint32(s.Type) == unix.RAMFS_MAGIC
}

// dataSync makes a file's content durable.
func dataSync(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }
