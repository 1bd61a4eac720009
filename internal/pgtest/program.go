package pgtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// ProgramsEnv names the environment variable with the folder of the programs that tests build. Tests of several
// packages share it, so that a program is linked once.
const ProgramsEnv = "LEDGERD_TEST_PROGRAMS"

// Program builds a command of this module, and returns its file. Under the race detector the program has it too, ends
// at its first data race, and shares the compiled packages of the test.
func Program(t testing.TB, pkg string) string {
	t.Helper()
	dir := os.Getenv(ProgramsEnv)
	if dir == "" {
		dir = t.TempDir()
	}
	file := filepath.Join(dir, filepath.Base(pkg))
	args := []string{"build", "-ldflags=-w", "-o", file} // does nothing if the file is up to date
	env := append(os.Environ(), "CGO_ENABLED=0")         // as make run builds it
	if raceDetector {
		args, env = append(args, "-race"), os.Environ()
		// Inherited by the processes that the test starts.
		if err := os.Setenv("GORACE", "halt_on_error=1 atexit_sleep_ms=0"); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", append(args, pkg)...)
	cmd.Env = env
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	return file
}
