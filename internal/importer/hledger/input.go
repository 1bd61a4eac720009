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

// open provides a journal's JSON for repeated reading: a .json file as is, stdin via a temporary file, and
// other files as hledger converts them, with the exact amounts that the JSON rounds.
func open(ctx context.Context, path string, stdin io.Reader, errOut io.Writer) (*importer.Source, exact, error) {
	if path == "-" || strings.EqualFold(filepath.Ext(path), ".json") {
		source, err := importer.OpenSource(path, stdin)
		return source, nil, err
	}
	if _, err := os.Stat(path); err != nil { // clearer than hledger's own error
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

// printed is a journal in hledger's output format.
func printed(ctx context.Context, path, format string, errOut io.Writer) (*importer.Source, error) {
	cmd := exec.CommandContext(ctx, "hledger", "print", "--output-format", format, "--file", path)
	cmd.Stderr = errOut
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return nil, fmt.Errorf("journals are read by hledger, which is not installed: install it, "+
				"or import the output of `hledger print -O json -f %s` from another machine as a .json file", path)
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

// sourceName begins the biz_nos of a file. It is the same when the file is moved, or when its JSON is imported instead.
func sourceName(name, path string) (string, error) {
	if name == "" {
		if path == "-" {
			return "", errors.New("stdin has no name: give --name, which is part of every biz_no")
		}
		name = strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	}
	if wrong := importer.BadName(name); wrong != "" || name == "" || len(name) > 80 {
		return "", fmt.Errorf("the name %q is part of every biz_no, and must be 1 to 80 bytes of printable ASCII: "+
			"give another with --name", name)
	}
	return name, nil
}
