package bench

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// childAttributes keep ctrl-C away from a child and have the kernel end it when we are gone.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// tick is the unit of CPU time in /proc: 100 a second on every architecture that Go runs on.
const tick = 10 * time.Millisecond

// procStat is what /proc/<pid>/stat tells of a process.
type procStat struct {
	parent   int
	own      time.Duration // user and system
	children time.Duration // of children that ended
}

func readStat(pid string) (s procStat, err error) {
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return s, err
	}
	// The fields follow the name, which stands in brackets and may hold any character.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 15 {
		return s, fmt.Errorf("/proc/%s/stat has %d fields", pid, len(fields))
	}
	number := func(i int) time.Duration {
		n, _ := strconv.ParseInt(string(fields[i]), 10, 64) // the kernel writes numbers
		return time.Duration(n)
	}
	return procStat{int(number(1)), (number(11) + number(12)) * tick, (number(13) + number(14)) * tick}, nil
}

// cpuOf is the CPU time that a process has used.
func cpuOf(pid int) time.Duration {
	s, _ := readStat(strconv.Itoa(pid)) // gone: it uses none
	return s.own
}

// cpuOfFamily is the CPU time of a process and its children, those that ended too. A child that ends
// while they are read would be missing here and there: then they are read again.
func cpuOfFamily(pid int) time.Duration {
	for {
		before, err := readStat(strconv.Itoa(pid))
		if err != nil {
			return 0
		}
		sum := before.own + before.children + cpuOfChildren(pid)
		if after, err := readStat(strconv.Itoa(pid)); err != nil || after.children == before.children {
			return sum
		}
	}
}

// cpuOfChildren is the CPU time of the children that are there.
func cpuOfChildren(pid int) (sum time.Duration) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if name := e.Name(); name[0] >= '0' && name[0] <= '9' {
			if s, err := readStat(name); err == nil && s.parent == pid {
				sum += s.own + s.children
			}
		}
	}
	return sum
}

// cpuOfMachine is the CPU time of all processes, and what the hypervisor gave to other machines.
func cpuOfMachine() (busy, stolen time.Duration) {
	text, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line)
	for i, f := range fields {
		n, _ := strconv.ParseInt(f, 10, 64)
		switch i {
		case 1, 2, 3: // user, nice, system
			busy += time.Duration(n) * tick
		case 8:
			stolen = time.Duration(n) * tick
		}
	}
	return busy, stolen
}

// forgetPeak makes the kernel forget the greatest memory of a process so far.
func forgetPeak(pid int) {
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0) // else the peak is since its start
}

// peakMemory is the greatest resident memory in bytes.
func peakMemory(pid int) int64 { return kilobytes(fmt.Sprintf("/proc/%d/status", pid), "VmHWM:") }

func memoryOfMachine() int64 { return kilobytes("/proc/meminfo", "MemTotal:") }

func kilobytes(file, field string) int64 {
	text, _ := os.ReadFile(file)
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, field); ok {
			n, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return n << 10
		}
	}
	return 0
}

func processorModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func kernel() string {
	text, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return "Linux " + strings.TrimSpace(string(text))
}

// Numbers of file systems that are memory.
const (
	tmpfsMagic = 0x01021994
	ramfsMagic = 0x858458f6
)

// isMemory tells whether a directory would be fast because it is no disk.
func isMemory(dir string) bool {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return false
	}
	return uint32(s.Type) == tmpfsMagic || uint32(s.Type) == ramfsMagic
}

// dataSync makes what was written to a file durable.
func dataSync(f *os.File) error { return syscall.Fdatasync(int(f.Fd())) }
