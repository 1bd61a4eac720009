package main

import (
	"bytes"
	"go/ast"
	"go/token"
	"go/types"
	"unicode/utf8"
)

// A tab is as wide as most editors draw it.
const tabWidth = 4

// longLiteral is the length of a string literal that is not broken: a text is found by searching for it.
const longLiteral = 40

// lineWidth reports wide lines, but for those with a URL, a long string or a part of a raw one.
func (s *source) lineWidth(lim limits) []finding {
	exempt := map[int]bool{}
	ast.Inspect(s.file, func(n ast.Node) bool {
		if b, ok := n.(*ast.BasicLit); ok && b.Kind == token.STRING &&
			(b.Value[0] == '`' || len(b.Value) >= longLiteral) {
			for line := s.fset.Position(b.Pos()).Line; line <= s.fset.Position(b.End()).Line; line++ {
				exempt[line] = true
			}
		}
		return true
	})
	limit := lim.width
	if s.test {
		limit = lim.testWidth
	}
	var found []finding
	line := 0
	for text := range bytes.Lines(s.text) {
		line++
		width := utf8.RuneCount(bytes.TrimRight(text, "\n")) + (tabWidth-1)*bytes.Count(text, []byte("\t"))
		if width > limit && !exempt[line] && !bytes.Contains(text, []byte("://")) {
			found = append(found, s.finding(s.fset.File(s.file.FileStart).LineStart(line), "line-width",
				"%d columns, at most %d", width, limit))
		}
	}
	return found
}

// builtins reports names that are declared though the language has them.
func (s *source) builtins() []finding {
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
