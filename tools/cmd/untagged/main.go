// Untagged refuses direct dependencies without a tagged release: module proxies may forget such snapshots, and
// then the project cannot be built on a new machine. Exceptions are listed in tools/untagged.txt with their
// reasons; an unnecessary exception is refused too.
//
//	go -C tools run ./cmd/untagged ..
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const exceptions = "tools/untagged.txt"

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: untagged <repository root>")
		os.Exit(2)
	}
	found, err := check(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "untagged:", err)
		os.Exit(2)
	}
	for _, line := range found {
		fmt.Fprintln(os.Stderr, line)
	}
	if len(found) > 0 {
		os.Exit(1)
	}
}

// snapshot matches versions that name a commit: Go's pseudo-versions, and versions of buf.build's generated modules.
var snapshot = regexp.MustCompile(`\d{14}-[0-9a-f]{12}`)

// check returns a line for each untagged dependency without an exception, and each unnecessary exception.
func check(root string) (found []string, err error) {
	text, err := os.ReadFile(filepath.Join(root, exceptions))
	if err != nil {
		return nil, err
	}
	excepted, used := map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		module, reason, _ := strings.Cut(line, " ")
		if reason == "" {
			found = append(found, fmt.Sprintf("%s: %s: give the reason after the module", exceptions, module))
		}
		excepted[module] = true
	}
	for _, file := range []string{"go.mod", "tools/go.mod"} {
		direct, err := directOf(filepath.Join(root, file))
		if err != nil {
			return nil, err
		}
		for _, d := range direct {
			switch {
			case !snapshot.MatchString(d.Version):
			case excepted[d.Path]:
				used[d.Path] = true
			default:
				found = append(found, fmt.Sprintf("%s: %s %s is untagged, and may vanish from module proxies; "+
					"use a tagged release, or add it to %s with the reason", file, d.Path, d.Version, exceptions))
			}
		}
	}
	for module := range excepted {
		if !used[module] {
			found = append(found, fmt.Sprintf("%s: %s: no direct dependency is untagged under this name; "+
				"delete the line", exceptions, module))
		}
	}
	slices.Sort(found)
	return found, nil
}

type module struct {
	Path, Version string
	Indirect      bool
}

// directOf lists direct dependencies of code and tools: go.mod marks a module with only a tool as indirect.
func directOf(file string) (direct []module, err error) {
	text, err := exec.Command("go", "mod", "edit", "-json", file).Output()
	if err != nil {
		return nil, fmt.Errorf("go mod edit -json %s: %w", file, err)
	}
	var mod struct {
		Require []module
		Tool    []struct{ Path string }
	}
	if err := json.Unmarshal(text, &mod); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	ofTool := map[string]bool{}
	for _, tool := range mod.Tool {
		longest := ""
		for _, r := range mod.Require {
			if strings.HasPrefix(tool.Path+"/", r.Path+"/") && len(r.Path) > len(longest) {
				longest = r.Path
			}
		}
		ofTool[longest] = true
	}
	for _, r := range mod.Require {
		if !r.Indirect || ofTool[r.Path] {
			direct = append(direct, r)
		}
	}
	return direct, nil
}
