package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"path"
	"regexp"
	"unicode/utf8"
)

// tabWidth is the common tab width of editors.
const tabWidth = 4

// longURL is a URL that fills a good part of a line.
var longURL = regexp.MustCompile(`://\S{30,}`)

// lineWidth reports wide lines, except lines with a long URL or a struct tag, which cannot be broken.
func (s *sourceFile) lineWidth(lim limits) []finding {
	tagged := map[int]bool{}
	ast.Inspect(s.file, func(n ast.Node) bool {
		if f, ok := n.(*ast.Field); ok && f.Tag != nil {
			tagged[s.fset.Position(f.Tag.Pos()).Line] = true
		}
		return true
	})
	return wideLines(s.rel, s.text, lim.width, func(line int, _ []byte) bool { return tagged[line] })
}

// proseWidth reports wide lines of SQL, protos and Markdown, except lines with a long URL, and tables and code in
// Markdown.
func proseWidth(rel string, text []byte, limit int) []finding {
	code := false
	return wideLines(rel, text, limit, func(_ int, line []byte) bool {
		line = bytes.TrimLeft(line, " ")
		if path.Ext(rel) != ".md" {
			return false
		}
		if bytes.HasPrefix(line, []byte("```")) {
			code = !code
		}
		return code || bytes.HasPrefix(line, []byte("|"))
	})
}

func wideLines(rel string, text []byte, limit int, exempt func(line int, text []byte) bool) []finding {
	var found []finding
	line := 0
	for text := range bytes.Lines(text) {
		line++
		width := utf8.RuneCount(bytes.TrimRight(text, "\n")) + (tabWidth-1)*bytes.Count(text, []byte("\t"))
		if !exempt(line, text) && width > limit && !longURL.Match(text) {
			found = append(found, finding{file: rel, line: line, rule: "line-width",
				text: fmt.Sprintf("%d columns, at most %d", width, limit)})
		}
	}
	return found
}

// builtins reports declarations that shadow the language's own names.
func (s *sourceFile) builtins() []finding {
	var found []finding
	report := func(names ...*ast.Ident) {
		for _, n := range names {
			if types.Universe.Lookup(n.Name) != nil {
				found = append(found, s.finding(n.Pos(), "shadowed-builtin", "%s is the language's own name", n.Name))
			}
		}
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch d := n.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				report(d.Name)
			}
		case *ast.FuncType:
			for _, list := range []*ast.FieldList{d.Params, d.Results, d.TypeParams} {
				if list != nil {
					for _, f := range list.List {
						report(f.Names...)
					}
				}
			}
		case *ast.ValueSpec:
			report(d.Names...)
		case *ast.AssignStmt:
			if d.Tok == token.DEFINE {
				for _, e := range d.Lhs {
					if n, ok := e.(*ast.Ident); ok {
						report(n)
					}
				}
			}
		case *ast.RangeStmt:
			for _, e := range []ast.Expr{d.Key, d.Value} {
				if n, ok := e.(*ast.Ident); ok && d.Tok == token.DEFINE {
					report(n)
				}
			}
		}
		return true
	})
	return found
}
