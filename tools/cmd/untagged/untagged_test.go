package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const snapshotVersion = " v0.0.0-20260918054303-01f206a7e32c"

func TestUntaggedDependenciesAndUnnecessaryExceptionsAreRefused(t *testing.T) {
	t.Parallel()
	generated := "example.com/gen v1.36.12-20260825204119-511051f7f437.1"
	for name, c := range map[string]struct {
		main, tools, exceptions string
		want                    []string // the beginning of each line
	}{
		"tagged":     {main: "require example.com/a v1.2.3"},
		"prerelease": {main: "require example.com/a v1.2.3-beta.2"},
		"snapshot": {main: "require example.com/a" + snapshotVersion,
			want: []string{"go.mod: example.com/a v0.0.0-2026"}},
		"snapshot after a tag": {main: "require example.com/a v1.2.4-0.20260918054303-01f206a7e32c",
			want: []string{"go.mod: example.com/a v1.2.4-0"}},
		"generated": {main: "require " + generated,
			want: []string{"go.mod: example.com/gen v1.36.12-"}},
		"indirect": {main: "require example.com/a" + snapshotVersion + " // indirect"},
		"of a tool": {tools: "tool example.com/a/cmd/b\nrequire example.com/a" + snapshotVersion +
			" // indirect", want: []string{"tools/go.mod: example.com/a "}},
		"beside a tool": {tools: "tool example.com/ab\nrequire example.com/a" + snapshotVersion +
			" // indirect"},
		"excepted": {main: "require example.com/a" + snapshotVersion,
			exceptions: "# why\nexample.com/a never tagged\n"},
		"excepted without a reason": {main: "require example.com/a" + snapshotVersion, exceptions: "example.com/a\n",
			want: []string{exceptions + ": example.com/a: give"}},
		"exception of a tagged one": {main: "require example.com/a v1.2.3", exceptions: "example.com/a never tagged\n",
			want: []string{exceptions + ": example.com/a: no direct"}},
		"exception of an absent one": {exceptions: "example.com/a never tagged\n",
			want: []string{exceptions + ": example.com/a: no direct"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for file, text := range map[string]string{"go.mod": "module example.com/x\n\n" + c.main + "\n",
				"tools/go.mod": "module example.com/x/tools\n\n" + c.tools + "\n", exceptions: c.exceptions} {
				if err := os.MkdirAll(filepath.Dir(filepath.Join(root, file)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(root, file), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			found, err := check(root)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.EqualFunc(found, c.want, strings.HasPrefix) {
				t.Errorf("got %q, want %q", found, c.want)
			}
		})
	}
}

func TestTheProjectHasNoUntaggedDependencies(t *testing.T) {
	t.Parallel()
	found, err := check(filepath.Join("..", "..", ".."))
	if err != nil || len(found) > 0 {
		t.Error(err, found)
	}
}
