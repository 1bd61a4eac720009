package importer

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// Progress draws a bar on a terminal; elsewhere it writes a line per tenth, because a bar would fill a log. A
// nil Progress is silent.
type Progress struct {
	w        io.Writer
	terminal bool
	total    int
	done     int
	tenths   int
	start    time.Time
	drawn    bool
}

// NewProgress starts counting towards total.
func NewProgress(w io.Writer, total int) *Progress {
	return &Progress{w: w, total: total, start: time.Now(), terminal: Terminal(w)}
}

// Terminal reports whether w is a terminal on which lines can be redrawn.
func Terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}

const barWidth = 30

// Add adds n to the count.
func (p *Progress) Add(n int) {
	if p == nil || p.total == 0 {
		return
	}
	p.done += n
	rate := float64(p.done) / max(time.Since(p.start).Seconds(), 0.001)
	text := fmt.Sprintf("%s of %s (%d %%), %s a second", Count(p.done), Count(p.total), 100*p.done/p.total,
		Count(int(rate)))
	if p.terminal {
		full := min(barWidth*p.done/p.total, barWidth)
		fmt.Fprintf(p.w, "\r[%s%s] %s\x1b[K", strings.Repeat("=", full), strings.Repeat(" ", barWidth-full), text)
		p.drawn = true
		return
	}
	if tenths := 10 * p.done / p.total; tenths > p.tenths {
		p.tenths = tenths
		fmt.Fprintln(p.w, text)
	}
}

// clear clears the line of the bar.
func (p *Progress) clear() {
	if p != nil && p.drawn {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.drawn = false
	}
}

// End removes the bar.
func (p *Progress) End() { p.clear() }

// Count formats a number with commas: 49,102.
func Count(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Plural formats a count with its noun.
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return Count(n) + " " + noun + "s"
}
