// Package source finds the hand-written files of a repository.
package source

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Walk calls see for every file below root with one of the extensions, with its path from root, with slashes. It skips
// testdata and the directories that the go tool ignores.
func Walk(root string, see func(name string, text []byte) error, extensions ...string) error {
	return filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && file != root && skipped(entry.Name()):
			return filepath.SkipDir
		case !entry.Type().IsRegular() || !slices.Contains(extensions, filepath.Ext(file)):
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		return see(filepath.ToSlash(name), text)
	})
}

func skipped(dir string) bool {
	return dir == "testdata" || dir == "vendor" || dir == "node_modules" ||
		strings.HasPrefix(dir, ".") || strings.HasPrefix(dir, "_")
}

// Module is the path of the module in root.
func Module(root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "module "); ok {
			return strings.TrimSpace(name), nil
		}
	}
	return "", fmt.Errorf("%s: go.mod names no module", root)
}
