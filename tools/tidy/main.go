// Tidy fails the build for what no compiler or linter minds and every reader does: files and functions that have grown
// too long, lines that are too wide, names that hide the language's own, packages named after nothing, mock libraries,
// tests that sleep, and imports against the layers that docs/ARCHITECTURE.md draws. The rules are few and have no
// exceptions by comment; a rule that is wrong is changed here.
//
//	go -C tools run ./tidy ..
//
// It reads source with go/parser, whatever the build tags, and needs no package to compile. Generated files are held to
// the import rules only; testdata and folders that the go tool skips are not looked at.
package main

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: tidy <repository root>")
		os.Exit(2)
	}
	findings, err := check(os.Args[1], limits{file: 500, testFile: 800, function: 70, width: 120, testWidth: 160})
	if err != nil {
		fmt.Fprintln(os.Stderr, "tidy:", err)
		os.Exit(2)
	}
	for _, f := range findings {
		fmt.Println(f)
	}
	if n := len(findings); n > 0 {
		fmt.Fprintf(os.Stderr, "tidy: %d broken rules\n", n)
		os.Exit(1)
	}
}

// limits are numbers of lines, and of columns of one, each the largest that is still allowed.
type limits struct {
	file, testFile, function, width, testWidth int
}

// finding is one broken rule. File is relative to the root, with slashes.
type finding struct {
	file string
	line int
	rule string
	text string
}

func (f finding) String() string {
	return fmt.Sprintf("%s:%d: %s (%s)", f.file, f.line, f.text, f.rule)
}

// check reads every Go file below root and returns what breaks a rule, in order of file and line.
func check(root string, lim limits) ([]finding, error) {
	module, err := modulePath(filepath.Join(root, "go.mod"))
	if err != nil {
		return nil, err
	}
	var all []finding
	err = filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name != root && skipped(entry.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || !entry.Type().IsRegular() {
			return nil
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		src, err := readSource(name, filepath.ToSlash(rel), module)
		if err != nil {
			return err
		}
		all = append(all, src.check(lim)...)
		return nil
	})
	slices.SortStableFunc(all, func(a, b finding) int {
		if c := strings.Compare(a.file, b.file); c != 0 {
			return c
		}
		return a.line - b.line
	})
	return all, err
}

func skipped(dir string) bool {
	return dir == "testdata" || dir == "vendor" || dir == "node_modules" ||
		strings.HasPrefix(dir, ".") || strings.HasPrefix(dir, "_")
}

func modulePath(goMod string) (string, error) {
	text, err := os.ReadFile(goMod)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "module "); ok {
			return path.Clean(strings.TrimSpace(rest)), nil
		}
	}
	return "", fmt.Errorf("%s: no module line", goMod)
}
