// Marks measures how easily the code is read: lines, widths, exports, words, and how many files and lines of functions
// one call passes.
//
//	go -C tools run ./marks .. [profile...]
//
// It parses Go source with go/parser, except generated files and testdata. Each profile is the coverage of a single
// call, as `make marks` writes it; its file name, without extension, names the call.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: marks <repository root> [coverage profile of one call]...")
		os.Exit(2)
	}
	m, err := measure(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "marks:", err)
		os.Exit(1)
	}
	fmt.Println("| mark | |\n|---|---|")
	for _, r := range m.rows() {
		fmt.Printf("| %s | %s |\n", r.name, r.value)
	}
	for _, file := range os.Args[2:] {
		j, err := journeyOf(os.Args[1], file)
		if err != nil {
			fmt.Fprintln(os.Stderr, "marks:", err)
			os.Exit(1)
		}
		name := strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
		fmt.Printf("| files on the way of one %s | %d |\n| lines of their functions that run | %d |\n| "+
			"packages | %d |\n",
			name, len(j.files), j.lines, j.packages())
		j.list(os.Stderr, name)
	}
}
