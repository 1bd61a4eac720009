package book

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
)

// journal has one line of JSON for each change, with the complete changed objects. A kill of the process can cut off
// the last line, whose change no caller has seen. A power failure can lose more, because the file is not synced.
type journal struct{ file *os.File }

type line struct {
	Payments []*Payment `json:"payments,omitempty"`
	Refunds  []*Refund  `json:"refunds,omitempty"`
	Notices  []*Notice  `json:"notices,omitempty"`
	Plans    *Plans     `json:"plans,omitempty"`
	Address  string     `json:"address,omitempty"`
}

func encode(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("cannot write %T as JSON: %v", v, err))
	}
	return text
}

// write appends the changed objects. A failure ends the program, because answers must not precede the journal.
func (b *Book) write(c *changes) {
	if b.journal == nil {
		return
	}
	l := line{Payments: c.payments, Refunds: c.refunds, Notices: c.notices}
	if c.plans {
		l.Plans, l.Address = &b.plans, b.address
	}
	if l.Payments == nil && l.Refunds == nil && l.Notices == nil && l.Plans == nil {
		return
	}
	if _, err := b.journal.file.Write(append(encode(l), '\n')); err != nil {
		log.Fatalf("the journal cannot be written: %v", err)
	}
}

// load reads the journal, and rewrites it without superseded versions of objects.
func (b *Book) load(name string) error {
	old, err := os.Open(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	default:
		err = b.read(old)
		_ = old.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	fresh, err := os.Create(name + ".new")
	if err != nil {
		return err
	}
	all := line{Notices: b.order, Plans: &b.plans, Address: b.address}
	for _, p := range b.payments {
		all.Payments = append(all.Payments, p)
	}
	sortPayments(all.Payments)
	for _, p := range all.Payments {
		all.Refunds = append(all.Refunds, b.ofTrade[id{p.Gateway, p.Key}]...)
	}
	if _, err := fresh.Write(append(encode(all), '\n')); err != nil {
		return err
	}
	b.journal = &journal{fresh}
	return os.Rename(name+".new", name)
}

func (b *Book) read(from io.Reader) error {
	lines := bufio.NewReader(from)
	for n := 1; ; n++ {
		text, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil // drops a line that was cut off by a kill
		}
		if err != nil {
			return err
		}
		var l line
		if err := json.Unmarshal(bytes.TrimSpace(text), &l); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		b.replay(&l)
	}
}

func (b *Book) replay(l *line) {
	for _, p := range l.Payments {
		if old := b.payments[id{p.Gateway, p.Key}]; old != nil {
			*old = *p
			b.index(old)
		} else {
			b.addPayment(p)
		}
		if key := p.Details[onceDetail]; key != "" {
			b.once[id{p.Gateway, key}] = b.payments[id{p.Gateway, p.Key}]
		}
	}
	for _, r := range l.Refunds {
		if old := b.refunds[id{r.Gateway, r.Key}]; old != nil {
			*old = *r
		} else {
			b.addRefund(r)
		}
		if key := r.Details[onceDetail]; key != "" {
			b.once[id{r.Gateway, key}] = b.refunds[id{r.Gateway, r.Key}]
		}
	}
	for _, n := range l.Notices {
		if old := b.notices[id{n.Gateway, n.ID}]; old != nil {
			*old = *n
		} else {
			b.addNotice(n)
		}
	}
	if l.Plans != nil {
		b.plans, b.address = *l.Plans, l.Address
	}
}
