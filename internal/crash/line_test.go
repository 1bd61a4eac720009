package crash_test

import (
	"bytes"
	"encoding/binary"
	"strings"
	"sync"
	"testing"

	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// line is a proxy between one server and the database that can cut connections at a COMMIT.
type line struct {
	*pgtest.Proxy

	mu      sync.Mutex
	cut     *cut               // nil: no cut is requested
	silence []pgtest.Direction // empty: no silence is requested
	wires   map[int]*wire
}

// cut is a request to cut at the next COMMIT of a batch that contains the text.
type cut struct {
	at   cutAt
	text string
	then func() // called at the cut
	done chan struct{}
}

type cutAt int

const (
	beforeCommit cutAt = iota // the database gets the batch without COMMIT
	afterCommit               // and COMMIT; the answer may be in flight
	atAnswer                  // the database has committed, and the answer is lost
)

// wire is the state of one connection.
type wire struct {
	requests, answers messages
	commits           map[string]bool // names of prepared COMMIT statements
	wanted            bool            // the current batch contains the text
	sent              bool            // COMMIT was sent
}

func newLine(t *testing.T, dsn string) *line {
	l := &line{Proxy: pgtest.NewProxy(t, dsn), wires: map[int]*wire{}}
	l.Tap(pgtest.Requests, l.request)
	l.Tap(pgtest.Answers, l.answer)
	return l
}

// cutNext cuts at the next matching COMMIT and then closes the channel.
func (l *line) cutNext(at cutAt, text string, then func()) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = &cut{at, text, then, make(chan struct{})}
	return l.cut.done
}

// silenceNext silences all connections at the next statement of a caller: a batch is in flight.
func (l *line) silenceNext(directions ...pgtest.Direction) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.silence = directions
}

// cancelCut withdraws the request of a cut that has not come.
func (l *line) cancelCut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = nil
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
			if len(l.silence) > 0 && bytes.Contains(body, []byte("caller-")) {
				l.Silence(l.silence...)
				l.silence = nil
			}
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

// messages parses the protocol messages of one direction.
type messages struct{ rest []byte }

// each calls see for every message that ends in data, with the offsets at which it begins (0: before data) and
// ends.
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
