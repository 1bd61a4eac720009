package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Lines of testdata/repo that violate a rule are marked `// want rule`. There must be no other findings.
func TestRulesFireExactlyOnMarkedLines(t *testing.T) {
	root := filepath.Join("testdata", "repo")
	findings, err := check(root, limits{file: 20, testFile: 25, function: 5, width: 110})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range findings {
		got = append(got, fmt.Sprintf("%s:%d %s", f.file, f.line, f.rule))
	}
	want := wanted(t, root)
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("missed:     %s", w)
		}
	}
	for _, g := range got {
		if !slices.Contains(want, g) {
			t.Errorf("unexpected: %s", g)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d findings, want %d", len(got), len(want))
	}

	rules := []string{"file-length", "function-length", "package-name", "mock-library", "test-sleep",
		"import-direction", "domain-import", "proto-import", "line-width", "shadowed-builtin", "field-comment"}
	for _, rule := range rules {
		if !strings.Contains(strings.Join(want, "\n"), " "+rule) {
			t.Errorf("testdata does not show rule %s", rule)
		}
	}
}

func wanted(t *testing.T, root string) []string {
	t.Helper()
	comment := regexp.MustCompile(`// want (\S+)`)
	var want []string
	err := filepath.WalkDir(root, func(name string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		for i, line := range strings.Split(string(text), "\n") {
			if m := comment.FindStringSubmatch(line); m != nil {
				want = append(want, fmt.Sprintf("%s:%d %s", filepath.ToSlash(rel), i+1, m[1]))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return want
}

func TestFindingNamesFileLineReasonAndRule(t *testing.T) {
	root := t.TempDir()
	writeFile(t, root, "go.mod", "module example.com/shop\n")
	writeFile(t, root, "internal/a/a.go", "package a\n\nimport _ \"example.com/shop/internal/b\"\n")
	findings, err := check(root, limits{file: 500, testFile: 800, function: 70, width: 120})
	if err != nil {
		t.Fatal(err)
	}
	want := "internal/a/a.go:3: internal/a imports internal/b: an operation across two domains is a flow; " +
		"if internal/b is not a domain, give it a layer in tools/tidy/layers.go (domain-import)"
	if len(findings) != 1 || findings[0].String() != want {
		t.Errorf("got  %v\nwant %s", findings, want)
	}
}

func TestBrokenSourceIsAnErrorNotAPass(t *testing.T) {
	root := t.TempDir()
	writeFile(t, root, "go.mod", "module example.com/shop\n")
	writeFile(t, root, "a.go", "package\n")
	if _, err := check(root, limits{width: 120}); err == nil {
		t.Error("no error")
	}
}

func TestRootWithoutGoModIsAnError(t *testing.T) {
	if _, err := check(t.TempDir(), limits{width: 120}); err == nil {
		t.Error("no error")
	}
}

func writeFile(t *testing.T, root, name, text string) {
	t.Helper()
	name = filepath.Join(root, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestLayersNameFolders(t *testing.T) {
	t.Parallel()
	for dir := range layers {
		if info, err := os.Stat(filepath.Join("../..", dir)); err != nil || !info.IsDir() {
			t.Errorf("%s is no folder", dir)
		}
	}
}
