package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
)

// emptyNames name a kind of content, not a subject. A package with such a name has no boundary, and keeps growing.
var emptyNames = []string{
	"util", "utils", "common", "helper", "helpers", "model", "models", "type", "types",
	"base", "manager", "managers", "service", "services",
}

// mockLibraries are banned: tests use the real thing, and a database per test takes 20 ms.
var mockLibraries = []string{
	"github.com/golang/mock",
	"go.uber.org/mock",
	"github.com/stretchr/testify/mock",
	"github.com/vektra/mockery",
	"github.com/gojuno/minimock",
	"github.com/matryer/moq",
	"github.com/maxbrunsfeld/counterfeiter",
	"github.com/DATA-DOG/go-sqlmock",
	"github.com/pashagolub/pgxmock",
	"github.com/jarcoal/httpmock",
	"github.com/h2non/gock",
	"gopkg.in/h2non/gock.v1",
}

// sourceFile is one parsed file with the data that the rules need.
type sourceFile struct {
	rel       string // path from the root, with slashes
	text      []byte
	module    string
	fset      *token.FileSet
	file      *ast.File
	test      bool
	generated bool
}

func parse(rel string, text []byte, module string) (*sourceFile, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, rel, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	return &sourceFile{
		rel: rel, text: text, module: module, fset: fset, file: file,
		test:      strings.HasSuffix(rel, "_test.go"),
		generated: ast.IsGenerated(file),
	}, nil
}

func (s *sourceFile) check(lim limits) []finding {
	found := slices.Concat(s.mocks(), s.layers())
	if !s.generated {
		found = slices.Concat(found, s.fileLength(lim), s.packageName(), s.lineWidth(lim), s.builtins())
		if s.test {
			found = slices.Concat(found, s.sleeps())
		} else {
			found = slices.Concat(found, s.functionLength(lim))
		}
	}
	return found
}

func (s *sourceFile) finding(pos token.Pos, rule, format string, args ...any) finding {
	return finding{file: s.rel, line: s.fset.Position(pos).Line, rule: rule, text: fmt.Sprintf(format, args...)}
}

func (s *sourceFile) fileLength(lim limits) []finding {
	limit := lim.file
	if s.test {
		limit = lim.testFile
	}
	tokens := s.fset.File(s.file.FileStart)
	// A final newline adds an empty line to token's count.
	lines := tokens.LineCount()
	if tokens.LineStart(lines) == s.file.FileEnd {
		lines--
	}
	if lines <= limit {
		return nil
	}
	return []finding{{file: s.rel, line: limit + 1, rule: "file-length",
		text: fmt.Sprintf("%d lines, at most %d: split it by verb", lines, limit)}}
}

// functionLength checks named functions and function literals outside of them, from the line of `func` to the
// closing brace.
func (s *sourceFile) functionLength(lim limits) []finding {
	var found []finding
	ast.Inspect(s.file, func(n ast.Node) bool {
		name := "function literal"
		switch f := n.(type) {
		case *ast.FuncDecl:
			name = f.Name.Name
		case *ast.FuncLit:
		default:
			return true
		}
		lines := s.fset.Position(n.End()).Line - s.fset.Position(n.Pos()).Line + 1
		if lines > lim.function {
			found = append(found, s.finding(n.Pos(), "function-length", "%s has %d lines, at most %d", name, lines,
				lim.function))
		}
		return false
	})
	return found
}

func (s *sourceFile) packageName() []finding {
	name := strings.TrimSuffix(s.file.Name.Name, "_test")
	if !slices.Contains(emptyNames, name) {
		return nil
	}
	return []finding{s.finding(s.file.Package, "package-name",
		"package %s says nothing: name it after what it is about", name)}
}

func (s *sourceFile) mocks() []finding {
	var found []finding
	for _, imp := range s.file.Imports {
		for _, lib := range mockLibraries {
			if target := importPath(imp); within(target, lib) {
				found = append(found, s.finding(imp.Pos(), "mock-library", "imports %s: test against the real thing",
					target))
			}
		}
	}
	return found
}

// sleeps reports any use of time.Sleep, as a call or as a value.
func (s *sourceFile) sleeps() []finding {
	local := ""
	for _, imp := range s.file.Imports {
		if importPath(imp) == "time" {
			local = "time"
			if imp.Name != nil {
				local = imp.Name.Name
			}
		}
	}
	var found []finding
	ast.Inspect(s.file, func(n ast.Node) bool {
		var name *ast.Ident
		switch e := n.(type) {
		case *ast.SelectorExpr:
			if x, ok := e.X.(*ast.Ident); ok && x.Name == local {
				name = e.Sel
			}
		case *ast.Ident:
			if local == "." {
				name = e
			}
		}
		if name != nil && name.Name == "Sleep" {
			found = append(found, s.finding(name.Pos(), "test-sleep",
				"a test that sleeps is slow or flaky: wait for the event"))
		}
		return true
	})
	return found
}

func importPath(imp *ast.ImportSpec) string {
	p, err := strconv.Unquote(imp.Path.Value)
	if err != nil {
		return imp.Path.Value
	}
	return p
}

// within reports whether import path p is dir or below it; github.com/a/b/v2 is below github.com/a/b.
func within(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, dir+"/")
}

// dir is the file's directory from the root: "." for the root itself.
func (s *sourceFile) dir() string {
	return path.Dir(s.rel)
}
