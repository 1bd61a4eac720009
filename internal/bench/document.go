package bench

import (
	"bytes"
	"fmt"
	"os"
)

// Marks between which a document holds the newest report.
const (
	docBegin = "<!-- bench:begin -->"
	docEnd   = "<!-- bench:end -->"
)

// WriteDocument puts the report between the marks of a Markdown document.
func (r *Report) WriteDocument(file string) error {
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	begin, end := bytes.Index(old, []byte(docBegin)), bytes.Index(old, []byte(docEnd))
	if begin < 0 || end < begin {
		return fmt.Errorf("%s has no %s with a %s behind it", file, docBegin, docEnd)
	}
	var text bytes.Buffer
	text.Write(old[:begin+len(docBegin)])
	text.WriteString("\n\n")
	if err := r.WriteMarkdown(&text); err != nil {
		return err
	}
	text.WriteString("\n")
	text.Write(old[end:])
	return os.WriteFile(file, text.Bytes(), 0o644)
}

// CheckDocument tells whether WriteDocument will find its place, before half an hour of measuring.
func CheckDocument(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if begin := bytes.Index(text, []byte(docBegin)); begin < 0 || !bytes.Contains(text[begin:], []byte(docEnd)) {
		return fmt.Errorf("%s has no %s with a %s behind it", file, docBegin, docEnd)
	}
	return nil
}
