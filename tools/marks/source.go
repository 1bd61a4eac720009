package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ledgerd/ledgerd/tools/source"
)

// marks are sums over the source of a repository.
type marks struct {
	lines, testLines         int
	wide, veryWide           int            // lines beyond 100 and 160 columns
	long                     int            // functions of more than 70 lines
	appends                  int            // lines with two or more calls of append
	riddles, persons         int            // comment lines with what or who as subject; with words such as nobody
	exports                  map[string]int // by package
	engineFiles, engineLines int
}

type row struct{ name, value string }

func (m *marks) rows() []row {
	n := func(x int) string { return fmt.Sprint(x) }
	all := m.lines + m.testLines
	return []row{
		{"lines of Go, hand-written, without tests", n(m.lines)},
		{"lines of tests", n(m.testLines)},
		{"lines wider than 100 columns", fmt.Sprintf("%d (%.1f %%)", m.wide, 100*float64(m.wide)/float64(all))},
		{"lines wider than 160 columns", n(m.veryWide)},
		{"functions of more than 70 lines", n(m.long)},
		{"lines with two or more calls of append", n(m.appends)},
		{"comment lines with what or who as subject", n(m.riddles)},
		{"comment lines with nobody, somebody, anybody or whoever", n(m.persons)},
		{"names that a package below internal exports, median", n(m.medianExports())},
		{"files of internal/commit", n(m.engineFiles)},
		{"lines of internal/commit", n(m.engineLines)},
	}
}

func (m *marks) medianExports() int {
	var counts []int
	for name, n := range m.exports {
		if strings.HasPrefix(name, "internal/") {
			counts = append(counts, n)
		}
	}
	slices.Sort(counts)
	if len(counts) == 0 {
		return 0
	}
	return counts[len(counts)/2]
}

var (
	generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)
	twoAppend = regexp.MustCompile(`\bappend\(.*\bappend\(`)
	riddle    = regexp.MustCompile(`(^|[.:;] )(What|Who|Whoever|That which)\b`)
	person    = regexp.MustCompile(`(?i)\b(nobody|somebody|anybody|whoever)\b`)
)

// measure reads every hand-written Go file below root.
func measure(root string) (*marks, error) {
	m := &marks{exports: make(map[string]int)}
	return m, source.Walk(root, m.add, ".go")
}

func (m *marks) add(name string, text []byte) error {
	if generated.Match(text) {
		return nil
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	test := strings.HasSuffix(name, "_test.go")
	for _, l := range lines {
		width := utf8.RuneCountInString(strings.ReplaceAll(l, "\t", "    "))
		m.wide += count(width > 100)
		m.veryWide += count(width > 160)
		m.appends += count(twoAppend.MatchString(l))
		if _, comment, ok := strings.Cut(l, "// "); ok {
			m.riddles += count(riddle.MatchString(comment))
			m.persons += count(person.MatchString(comment))
		}
	}
	if test {
		m.testLines += len(lines)
	} else {
		m.lines += len(lines)
	}
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, text, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	folder := name[:max(0, strings.LastIndexByte(name, '/'))]
	if folder == "internal/commit" && !test {
		m.engineFiles++
		m.engineLines += len(lines)
	}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			m.long += count(set.Position(f.End()).Line-set.Position(f.Pos()).Line+1 > 70)
		}
		if !test && file.Name.Name != "main" {
			m.exports[folder] += exported(d)
		}
	}
	return nil
}

func count(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// exported counts the exported package-level names of a declaration, without methods.
func exported(d ast.Decl) (n int) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		return count(d.Recv == nil && d.Name.IsExported())
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				n += count(s.Name.IsExported())
			case *ast.ValueSpec:
				for _, name := range s.Names {
					n += count(name.IsExported())
				}
			}
		}
	}
	return n
}
