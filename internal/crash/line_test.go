package crash_test

import (
	"bytes"
	"encoding/binary"
	"strings"
	"sync"
	"testing"

	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// line is the way of one server to the database, which can be cut at a COMMIT.
type line struct {
	*pgtest.Proxy

	mu    sync.Mutex
	cut   *cut // nil: none is waited for
	wires map[int]*wire
}

// cut is made at the next COMMIT of a batch that has something with the text.
type cut struct {
	at   cutAt
	text string
	then func() // is called with the cut
	done chan struct{}
}

type cutAt int

const (
	beforeCommit cutAt = iota // the database gets all of the batch but COMMIT
	afterCommit               // and COMMIT; its answer may be on its way
	atAnswer                  // the database has committed, and the answer is lost
)

// wire is what is known of one connection.
type wire struct {
	requests, answers messages
	commits           map[string]bool // names of prepared statements
	wanted            bool            // the batch on its way has the text
	sent              bool            // COMMIT went out
}

func newLine(t *testing.T, dsn string) *line {
	l := &line{Proxy: pgtest.NewProxy(t, dsn), wires: map[int]*wire{}}
	l.Tap(pgtest.Requests, l.request)
	l.Tap(pgtest.Answers, l.answer)
	return l
}

// cutNext cuts at the next such COMMIT. The channel is closed then.
func (l *line) cutNext(at cutAt, text string, then func()) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = &cut{at, text, then, make(chan struct{})}
	return l.cut.done
}

func (l *line) wire(conn int) *wire {
	if l.wires[conn] == nil {
		l.wires[conn] = &wire{commits: map[string]bool{}}
	}
	return l.wires[conn]
}

func (l *line) fire() {
	l.cut.then()
	close(l.cut.done)
	l.cut = nil
}

func (l *line) request(conn int, data []byte) (pass int, done bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.wire(conn)
	pass = len(data)
	w.requests.each(data, func(kind byte, body []byte, begin, end int) {
		switch names := bytes.SplitN(body, []byte{0}, 3); {
		case kind == 'P': // Parse: name, query
			w.commits[string(names[0])] = strings.EqualFold(string(names[1]), "commit")
		case kind == 'B' && w.commits[string(names[1])]: // Bind: portal, name
			w.sent = true
			if w.wanted && l.cut != nil && l.cut.at == beforeCommit {
				pass, done = min(pass, begin), true
			}
		case kind == 'B':
			w.wanted = w.wanted || l.cut != nil && bytes.Contains(body, []byte(l.cut.text))
		case kind == 'S' && w.sent && w.wanted && l.cut != nil && l.cut.at == afterCommit:
			pass, done = min(pass, end), true
		}
	})
	if done {
		l.fire()
	}
	return pass, done
}

func (l *line) answer(conn int, data []byte) (pass int, done bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.wire(conn)
	pass = len(data)
	w.answers.each(data, func(kind byte, body []byte, begin, _ int) {
		if kind != 'C' || !w.sent { // CommandComplete
			return
		}
		if string(body) == "COMMIT\x00" {
			if w.wanted && l.cut != nil && l.cut.at == atAnswer {
				pass, done = min(pass, begin), true
			}
			w.sent, w.wanted = false, false
		}
	})
	if done {
		l.fire()
	}
	return pass, done
}

// messages finds the messages in what one direction carries.
type messages struct{ rest []byte }

// each calls see with every message that ends in data, and where in data it begins (0: before it) and ends.
func (m *messages) each(data []byte, see func(kind byte, body []byte, begin, end int)) {
	before := len(m.rest)
	all := append(m.rest, data...)
	at := 0
	for len(all)-at >= 5 {
		length := 1 + int(binary.BigEndian.Uint32(all[at+1:]))
		if len(all)-at < length {
			break
		}
		see(all[at], all[at+5:at+length], max(0, at-before), at+length-before)
		at += length
	}
	m.rest = bytes.Clone(all[at:])
}
