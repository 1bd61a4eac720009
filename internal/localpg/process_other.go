//go:build unix && !linux

package localpg

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// maxSocketPath is what sockaddr_un holds on macOS, less the final zero.
const maxSocketPath = 103

// childAttributes keep ctrl-C in our terminal away from the child. There is no
// death signal here: when we are killed the server lives on until the next
// start, which ends it (see clearOldPostmaster).
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// inspect tells what is behind a pid, and its arguments when it can. Arguments
// with blanks come in pieces; a path is then not recognised, which errs on the
// side of leaving the process alone.
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
