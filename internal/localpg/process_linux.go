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

// maxSocketPath is what sockaddr_un holds, less the final zero.
const maxSocketPath = 107

// childAttributes keep ctrl-C in our terminal away from the child (own process
// group) and have the kernel end it in good order when we are killed.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGINT}
}

// inspect tells what is behind a pid, and its arguments when it can.
func inspect(pid int) (processState, []string) {
	proc := "/proc/" + strconv.Itoa(pid)
	stat, err := os.ReadFile(proc + "/stat")
	if errors.Is(err, fs.ErrNotExist) {
		if syscall.Kill(pid, 0) == syscall.ESRCH {
			return processGone, nil
		}
		return processRuns, nil // /proc hides other users' processes
	}
	// The state follows the name, which stands in brackets and may hold any character.
	if i := bytes.LastIndexByte(stat, ')'); i >= 0 && strings.HasPrefix(string(stat[i:]), ") Z") {
		return processZombie, nil
	}
	cmdline, _ := os.ReadFile(proc + "/cmdline")
	return processRuns, strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
}
