package bench

import (
	"bytes"
	"fmt"
	"io"
	"os"
)

// Document is a section in a Markdown document with the latest report of a kind.
type Document string

// Kinds of reports.
const (
	LedgerDocument   Document = "bench"
	KeysDocument     Document = "bench keys"
	NotifyDocument   Document = "bench notify"
	OverloadDocument Document = "bench overload"
	StockDocument    Document = "bench stock"
	SaleDocument     Document = "bench sale"
	CheckoutDocument Document = "bench checkout"
)

// marks are the section's delimiters.
func (d Document) marks() (begin, end []byte) {
	return fmt.Appendf(nil, "<!-- %s:begin -->", d), fmt.Appendf(nil, "<!-- %s:end -->", d)
}

// place finds the bytes between the marks.
func (d Document) place(file string) (text []byte, from, to int, err error) {
	if text, err = os.ReadFile(file); err != nil {
		return nil, 0, 0, err
	}
	begin, end := d.marks()
	from, to = bytes.Index(text, begin), bytes.Index(text, end)
	if from < 0 || to < from {
		return nil, 0, 0, fmt.Errorf("%s has no %s followed by %s", file, begin, end)
	}
	return text, from + len(begin), to, nil
}

// Write replaces a file's section by a report.
func (d Document) Write(file string, report func(io.Writer) error) error {
	old, from, to, err := d.place(file)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	text.Write(old[:from])
	text.WriteString("\n\n")
	if err := report(&text); err != nil {
		return err
	}
	text.WriteString("\n")
	text.Write(old[to:])
	return os.WriteFile(file, text.Bytes(), 0o644)
}

// Check checks that Write will find its section, before half an hour of measuring.
func (d Document) Check(file string) error {
	_, _, _, err := d.place(file)
	return err
}
