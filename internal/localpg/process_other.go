//go:build unix && !linux

package localpg

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// maxSocketPath is the capacity of sockaddr_un on macOS without the terminating zero.
const maxSocketPath = 103

// childAttributes protect the child from ctrl-C in our terminal. There is no death signal here: if this process
// is killed, the server runs until the next start stops it (see clearOldPostmaster).
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// inspect returns the state of a pid and, if readable, its arguments. Arguments with blanks are split; a path
// with blanks is then not recognised, and the process is left alone.
func inspect(pid int) (processState, []string) {
	if syscall.Kill(pid, 0) == syscall.ESRCH {
		return processGone, nil
	}
	out, err := exec.Command("ps", "-ww", "-o", "stat=,command=", "-p", strconv.Itoa(pid)).Output()
	fields := strings.Fields(string(out))
	if err != nil || len(fields) == 0 {
		return processRuns, nil
	}
	if strings.HasPrefix(fields[0], "Z") {
		return processZombie, nil
	}
	return processRuns, fields[1:]
}
