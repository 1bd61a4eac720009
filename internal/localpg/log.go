package localpg

import (
	"fmt"
	"io"
	"strings"
	"sync"
)

const tailBytes = 4096

// logTail forwards the log and keeps its end for error messages.
type logTail struct {
	mu    sync.Mutex
	next  io.Writer
	last  []byte
	notes func(string) // may be nil
}

func newLogTail(next io.Writer) *logTail {
	if next == nil {
		next = io.Discard
	}
	return &logTail{next: next}
}

// Write never returns an error: if the pipe from Postgres were not read, Postgres would block once it is full.
func (l *logTail) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = append(l.last, p...)
	if extra := len(l.last) - tailBytes; extra > 0 {
		l.last = append(l.last[:0], l.last[extra:]...)
	}
	_, _ = l.next.Write(p)
	return len(p), nil
}

func (l *logTail) printf(format string, args ...any) {
	note := fmt.Sprintf(format, args...)
	if l.notes != nil {
		l.notes(note)
	}
	_, _ = l.Write([]byte("localpg: " + note + "\n"))
}

func (l *logTail) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(string(l.last))
}
