package main

import (
	"bufio"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ledgerd/ledgerd/tools/source"
)

// journey is the set of functions that one call runs, by file.
type journey struct {
	files map[string][]function
	lines int
}

type function struct {
	name        string
	first, last int
}

// block matches a line of a profile: module/file.go:line.column,line.column statements count
var block = regexp.MustCompile(`^(.+\.go):(\d+)\.\d+,(\d+)\.\d+ \d+ (\d+)$`)

// journeyOf returns the functions that ran according to a coverage profile, except generated ones.
func journeyOf(root, profile string) (*journey, error) {
	module, err := source.Module(root)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(profile)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	ran := make(map[string]map[int]bool) // lines on which a block that ran begins
	for s := bufio.NewScanner(f); s.Scan(); {
		b := block.FindStringSubmatch(s.Text())
		if b == nil || b[4] == "0" || strings.Contains(b[1], "/internal/server/journeys/") { // the caller
			continue
		}
		name := strings.TrimPrefix(b[1], module+"/")
		if ran[name] == nil {
			ran[name] = make(map[int]bool)
		}
		line, _ := strconv.Atoi(b[2])
		ran[name][line] = true
	}
	j := &journey{files: make(map[string][]function)}
	for name, lines := range ran {
		if err := j.add(root, name, lines); err != nil {
			return nil, err
		}
	}
	return j, nil
}

func (j *journey) add(root, name string, ran map[int]bool) error {
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil || generated.Match(text) {
		return err
	}
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, text, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		x := function{f.Name.Name, set.Position(f.Pos()).Line, set.Position(f.End()).Line}
		for line := x.first; line <= x.last; line++ {
			if ran[line] {
				j.files[name] = append(j.files[name], x)
				j.lines += x.last - x.first + 1
				break
			}
		}
	}
	return nil
}

func (j *journey) packages() int {
	seen := make(map[string]bool)
	for name := range j.files {
		seen[path.Dir(name)] = true
	}
	return len(seen)
}

// list writes the files with their functions.
func (j *journey) list(w io.Writer, call string) {
	for _, name := range slices.Sorted(maps.Keys(j.files)) {
		lines, names := 0, []string{}
		for _, f := range j.files[name] {
			lines += f.last - f.first + 1
			names = append(names, f.name)
		}
		fmt.Fprintf(w, "%s: %4d %s: %s\n", call, lines, name, strings.Join(names, " "))
	}
}
