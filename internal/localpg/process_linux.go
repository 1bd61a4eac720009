package localpg

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// maxSocketPath is the capacity of sockaddr_un without the terminating zero.
const maxSocketPath = 107

// childAttributes protect the child from ctrl-C in our terminal (own process group) and have the kernel shut it
// down when this process is killed.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGINT}
}

// inspect returns the state of a pid and, if readable, its arguments.
func inspect(pid int) (processState, []string) {
	proc := "/proc/" + strconv.Itoa(pid)
	stat, err := os.ReadFile(proc + "/stat")
	if errors.Is(err, fs.ErrNotExist) {
		if syscall.Kill(pid, 0) == syscall.ESRCH {
			return processGone, nil
		}
		return processRuns, nil // /proc may hide other users' processes
	}
	// The state follows the name, which is in parentheses and may contain any character.
	if i := bytes.LastIndexByte(stat, ')'); i >= 0 && strings.HasPrefix(string(stat[i:]), ") Z") {
		return processZombie, nil
	}
	cmdline, _ := os.ReadFile(proc + "/cmdline")
	return processRuns, strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
}
