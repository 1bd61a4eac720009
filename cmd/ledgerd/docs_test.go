package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/rpc"
	"github.com/ledgerd/ledgerd/internal/server"
)

// block is a fenced block of a page.
type block struct {
	line int
	info string
	text string
}

func blocks(t *testing.T, file string) (found []block) {
	t.Helper()
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var in *block
	for i, line := range strings.Split(string(page), "\n") {
		fence, isFence := strings.CutPrefix(line, "```")
		switch {
		case in != nil && isFence:
			found = append(found, *in)
			in = nil
		case in != nil:
			in.text += line + "\n"
		case isFence:
			in = &block{line: i + 1, info: fence}
		}
	}
	return found
}

// devServer is a server as `ledgerd dev` starts it, with the sample data.
func devServer(t *testing.T) (address string) {
	t.Helper()
	db := pgtest.New(t)
	ctx := context.Background()
	tenant, err := access.EnsureTenant(ctx, pgtest.Pool(t, db.SuperDSN), devTenant)
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.Start(ctx, server.Options{DatabaseURL: db.AppDSN, AdminDatabaseURL: db.AdminDSN,
		Listen: "127.0.0.1:0",
		Log:    slog.New(slog.DiscardHandler),
		Anyone: &access.Identity{Tenant: tenant, Principal: "dev", Role: access.Admin}, Secret: secret.New()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	if err := sample(ctx, "http://"+s.Addr()); err != nil {
		t.Fatal(err)
	}
	return s.Addr()
}

// TestDocumentedCallsWork runs every sh block of a page in order. A block must succeed unless it is marked "sh
// error", and a json block after it must be part of its output.
func TestDocumentedCallsWork(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("SKIPPED, NOT TESTED: curl is not installed (apt-get install curl)")
	}
	for _, file := range append(apiPages(t), "../../README.md", "../../docs/recipes.md") {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			address := devServer(t)
			var prelude, answer string
			ran := 0
			for _, b := range blocks(t, file) {
				at := fmt.Sprintf("%s:%d", file, b.line)
				switch {
				case b.info == "json":
					contains(t, at, answer, b.text)
				case b.info == "sh" || b.info == "sh error":
					ran++
					answer = runBlock(t, at, prelude+strings.ReplaceAll(b.text, "127.0.0.1:8080", address),
						b.info == "sh error")
					if end := strings.Index(b.text, "\n}\n"); strings.HasPrefix(b.text, "call() {") && end > 0 {
						prelude = strings.ReplaceAll(b.text[:end+3], "127.0.0.1:8080", address)
					}
				}
			}
			if ran == 0 {
				t.Error("no blocks to run")
			}
		})
	}
}

func runBlock(t *testing.T, at, script string, wantError bool) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	// The page's curl commands may omit --fail.
	cmd := exec.CommandContext(ctx, "bash", "-euc", "curl() { command curl --fail-with-body \"$@\"; }\n"+script)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if (err != nil) != wantError {
		t.Errorf("%s: %v\n%s%s\n%s", at, err, script, out.String(), errOut.String())
	}
	return out.String()
}

// contains checks that the shown answer is part of the actual one.
func contains(t *testing.T, at, answer, shown string) {
	t.Helper()
	var got, want any
	if err := json.Unmarshal([]byte(shown), &want); err != nil {
		t.Fatalf("%s: %v", at, err)
	}
	if err := json.Unmarshal([]byte(answer), &got); err != nil {
		t.Errorf("%s: %v in %q", at, err, answer)
		return
	}
	if where := missing(got, want, ""); where != "" {
		t.Errorf("%s: the answer differs at %s:\n%s", at, where, answer)
	}
}

func missing(got, want any, path string) string {
	switch want := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return path
		}
		for k, v := range want {
			if where := missing(g[k], v, path+"."+k); where != "" {
				return where
			}
		}
		return ""
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) < len(want) {
			return path
		}
		for i, v := range want {
			if where := missing(g[i], v, fmt.Sprintf("%s[%d]", path, i)); where != "" {
				return where
			}
		}
		return ""
	}
	if got != want {
		return fmt.Sprintf("%s (%v)", path, got)
	}
	return ""
}

// apiPages returns the reference pages of all services. The ledger's page also documents calls in general.
func apiPages(t *testing.T) []string {
	pages, err := filepath.Glob("../../docs/api/*.md")
	if err != nil {
		t.Fatal(err)
	}
	return append(pages, "../../docs/api.md")
}

func TestEveryCallIsDocumentedWithAnExample(t *testing.T) {
	scripts := make(map[string]string)
	for _, page := range apiPages(t) {
		for _, b := range blocks(t, page) {
			if b.info == "sh" || b.info == "sh error" { // a call that this server cannot do shows its refusal
				scripts[page] += b.text
			}
		}
	}
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := 0; j < s.Methods().Len() && strings.HasPrefix(string(s.FullName()), "ledgerd."); j++ {
				name := string(s.Methods().Get(j).Name())
				shown := false
				for _, script := range scripts {
					shown = shown || strings.Contains(script, string(s.FullName())+"/$1") &&
						strings.Contains(script, "call "+name+" ") ||
						strings.Contains(script, string(s.FullName())+"/"+name)
				}
				if !shown {
					t.Errorf("no page below docs/api has an example of %s of %s", name, s.FullName())
				}
			}
		}
		return true
	})
}

var codeName = regexp.MustCompile("`([^`]+)`")

// TestGlossaryNamesExist looks up all names in the glossary's third column.
func TestGlossaryNamesExist(t *testing.T) {
	t.Parallel()
	there := namesThere(t)
	page, err := os.ReadFile("../../docs/glossary.md")
	if err != nil {
		t.Fatal(err)
	}
	terms := map[string]bool{}
	for i, line := range strings.Split(string(page), "\n") {
		cells := strings.Split(line, " | ")
		if !strings.HasPrefix(line, "| ") || cells[0] == "| term" {
			continue
		}
		if len(cells) != 4 {
			t.Fatalf("line %d has %d cells", i+1, len(cells))
		}
		for term := range strings.SplitSeq(strings.TrimPrefix(cells[0], "| "), ", ") {
			if terms[term] {
				t.Errorf("line %d: %s occurs twice", i+1, term)
			}
			terms[term] = true
		}
		found := codeName.FindAllStringSubmatch(cells[2], -1)
		if len(found) == 0 {
			t.Errorf("line %d: the term names no place", i+1)
		}
		for _, name := range found {
			if !there[name[1]] {
				t.Errorf("line %d: %s does not exist", i+1, name[1])
			}
		}
	}
	if len(terms) < 50 {
		t.Errorf("only %d terms were found", len(terms))
	}
}

// namesThere returns the names of the API, the database, and the errors.
func namesThere(t *testing.T) map[string]bool {
	t.Helper()
	there := map[string]bool{"db/checks": true, "Authorization": true, rpc.KeyHeader: true, rpc.ReplayedHeader: true,
		rpc.RequestIDHeader: true,
		rpc.TokenHeader:     true, rpc.NextTokenHeader: true, rpc.ClaimHeader: true, rpc.ClaimCountHeader: true}
	for _, r := range fault.All() {
		there[r.Name] = true
	}
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if strings.HasPrefix(string(f.Package()), "ledgerd.") {
			addNames(there, f)
		}
		return true
	})
	rows, err := pgtest.Pool(t, pgtest.New(t).SuperDSN).Query(context.Background(), `
		select unnest(array[relation, relation || '.' || column_name]) from (
			select case table_schema when 'public' then '' else table_schema || '.' end || table_name as relation,
			column_name
			from information_schema.columns where table_schema in ('public', 'audit')) c`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		there[name] = true
	}
	return there
}

func addNames(there map[string]bool, f protoreflect.FileDescriptor) {
	for i := range f.Messages().Len() {
		m := f.Messages().Get(i)
		there[string(m.Name())] = true
		for j := range m.Fields().Len() {
			there[string(m.Name())+"."+string(m.Fields().Get(j).Name())] = true
		}
	}
	for i := range f.Enums().Len() {
		e := f.Enums().Get(i)
		there[string(e.Name())] = true
		for j := range e.Values().Len() {
			there[string(e.Values().Get(j).Name())] = true
		}
	}
	for i := range f.Services().Len() {
		for j := range f.Services().Get(i).Methods().Len() {
			there[string(f.Services().Get(i).Methods().Get(j).Name())] = true
		}
	}
}

var link = regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)

// pages returns the pages for readers: those at the top, and the documentation.
func pages() []string {
	files, _ := filepath.Glob("../../*.md")
	for _, pattern := range []string{"*.md", "*/*.md"} {
		more, _ := filepath.Glob("../../docs/" + pattern)
		files = append(files, more...)
	}
	return files
}

var (
	testName = regexp.MustCompile(`\bTest[A-Z]\w+`)
	testFunc = regexp.MustCompile(`(?m)^func (Test[A-Z]\w+)\(`)
)

// A page that names a test as the proof of a claim names one that exists.
func TestNamedTestsExist(t *testing.T) {
	t.Parallel()
	exist := map[string]bool{}
	err := filepath.WalkDir("../..", func(file string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(file, "_test.go") {
			return err
		}
		text, err := os.ReadFile(file)
		for _, f := range testFunc.FindAllStringSubmatch(string(text), -1) {
			exist[f[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, file := range pages() {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range testName.FindAllString(string(text), -1) {
			if seen++; !exist[name] {
				t.Errorf("%s: there is no %s", file, name)
			}
		}
	}
	if seen < 100 {
		t.Errorf("only %d tests are named", seen)
	}
}

func TestLinksLeadSomewhere(t *testing.T) {
	seen := 0
	for _, file := range pages() {
		page, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, to := range link.FindAllStringSubmatch(string(page), -1) {
			seen++
			if _, err := os.Stat(filepath.Join(filepath.Dir(file), to[1])); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
	if seen < 20 {
		t.Errorf("only %d links were found", seen)
	}
}
