package hledger

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/ledgerd/ledgerd/internal/importer"
)

// open gives the JSON of a journal for several readings: a .json file as it is, stdin from a temporary
// file, and of anything else what hledger itself makes of it, with the amounts that the JSON rounds.
func open(ctx context.Context, path string, stdin io.Reader, errOut io.Writer) (*importer.Source, exact, error) {
	if path == "-" || strings.EqualFold(filepath.Ext(path), ".json") {
		source, err := importer.OpenSource(path, stdin)
		return source, nil, err
	}
	if _, err := os.Stat(path); err != nil { // hledger would say it too, but less plainly
		return nil, nil, err
	}
	source, err := printed(ctx, path, "json", errOut)
	if err != nil {
		return nil, nil, err
	}
	e, err := findExact(ctx, path, source, errOut)
	if err != nil {
		source.Close()
	}
	return source, e, err
}

// printed is a journal as hledger prints it.
func printed(ctx context.Context, path, format string, errOut io.Writer) (*importer.Source, error) {
	cmd := exec.CommandContext(ctx, "hledger", "print", "--output-format", format, "--file", path)
	cmd.Stderr = errOut
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return nil, fmt.Errorf("journals are read by hledger, which is not installed: install it, or import the output of `hledger print -O json -f %s` from another machine as a .json file", path)
		}
		return nil, err
	}
	source, err := importer.Spool(out)
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, err
	}
	if err := cmd.Wait(); err != nil {
		source.Close()
		return nil, fmt.Errorf("hledger does not read %s: %w", path, err)
	}
	return source, nil
}

// sourceName is what the biz_nos of a file begin with. It stays the same when the file is moved, and
// when its JSON is imported instead.
func sourceName(name, path string) (string, error) {
	if name == "" {
		if path == "-" {
			return "", errors.New("stdin has no name: give --name, which is part of every biz_no")
		}
		name = strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	}
	if wrong := importer.BadName(name); wrong != "" || name == "" || len(name) > 80 {
		return "", fmt.Errorf("the name %q is part of every biz_no, and must be 1 to 80 bytes of printable ASCII: give another with --name", name)
	}
	return name, nil
}
