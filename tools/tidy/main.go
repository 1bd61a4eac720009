// Tidy fails the build for problems that compilers and linters ignore and readers do not: long files and functions,
// wide lines, names that shadow builtins, meaningless package names, mock libraries, tests that sleep, and imports
// against the layers in docs/ARCHITECTURE.md. SQL, protos and Markdown are checked for wide lines, fields of protos for
// comments. Comments cannot disable a rule: to change a rule, change this program.
//
//	go -C tools run ./tidy ..
//
// It parses source with go/parser, regardless of build tags, and needs no package to compile. Generated files
// are only checked for imports; testdata and directories that the go tool ignores are skipped.
package main

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/tools/source"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: tidy <repository root>")
		os.Exit(2)
	}
	findings, err := check(os.Args[1], limits{file: 500, testFile: 800, function: 70, width: 120})
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

// limits are the maximum numbers of lines and columns.
type limits struct {
	file, testFile, function, width int
}

// finding is one violation. File is relative to the root, with slashes.
type finding struct {
	file string
	line int
	rule string
	text string
}

func (f finding) String() string {
	return fmt.Sprintf("%s:%d: %s (%s)", f.file, f.line, f.text, f.rule)
}

// check reads every Go, SQL, proto and Markdown file below root and returns the violations, ordered by file and line.
func check(root string, lim limits) ([]finding, error) {
	module, err := source.Module(root)
	if err != nil {
		return nil, err
	}
	var all []finding
	err = source.Walk(root, func(name string, text []byte) error {
		if strings.HasPrefix(name, "proto-vendor/") {
			return nil // the protos of others
		}
		if path.Ext(name) != ".go" {
			all = append(all, proseWidth(name, text, lim.width)...)
			all = append(all, protoComments(name, text)...)
			return nil
		}
		f, err := parse(name, text, module)
		if err != nil {
			return err
		}
		all = append(all, f.check(lim)...)
		return nil
	}, ".go", ".sql", ".md", ".proto")
	slices.SortStableFunc(all, func(a, b finding) int {
		return cmp.Or(strings.Compare(a.file, b.file), a.line-b.line)
	})
	return all, err
}
