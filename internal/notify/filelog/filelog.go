// Package filelog is a sender for development: it appends each message as a line of JSON to a file, or writes it to
// standard error. Keys are deduplicated, even across processes, as by a provider with idempotency keys.
package filelog

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// line is the format of a message in the file.
type line struct {
	At          time.Time         `json:"at"`
	Channel     send.Channel      `json:"channel"`
	Tenant      int32             `json:"tenant"`
	ID          int64             `json:"id"`
	Key         string            `json:"key"`
	Attempt     int               `json:"attempt"`
	Recipient   string            `json:"recipient"`
	Subject     string            `json:"subject,omitempty"`
	Text        string            `json:"text,omitempty"`
	HTML        string            `json:"html,omitempty"`
	Attachments []attachment      `json:"attachments,omitempty"`
	Template    map[string]string `json:"template,omitempty"`
	Params      []send.Param      `json:"params,omitempty"`
	Type        string            `json:"type,omitempty"`
	Data        json.RawMessage   `json:"data,omitempty"`
	Headers     map[string]string `json:"headers,omitempty"`
}

type attachment struct {
	Name  string `json:"name"`
	Type  string `json:"type"`
	Bytes int    `json:"bytes"`
}

// Sender writes messages to a file. It implements send.Sender for all channels.
type Sender struct {
	mu   sync.Mutex
	out  io.Writer // standard error, if file is nil
	file *os.File
	seen map[string]int64
	read int64 // offset up to which seen covers the file
}

// New opens or creates a file that only its owner can read. Without a name it writes to standard error, and
// deduplicates only within this process.
func New(name string) (*Sender, error) {
	if name == "" {
		return &Sender{out: os.Stderr, seen: map[string]int64{}}, nil
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	if err := file.Chmod(0o600); err != nil { // the file may have existed with a wider mode
		_ = file.Close()
		return nil, err
	}
	return &Sender{file: file, seen: map[string]int64{}}, nil
}

// Send appends a message, unless its key was written before.
func (s *Sender) Send(ctx context.Context, m *send.Message) (send.Receipt, error) {
	if ctx.Err() != nil {
		return send.Receipt{}, &send.Failure{Outcome: send.Temporary, Code: "cancelled",
			Text: "the attempt was cancelled"}
	}
	text, err := encode(m)
	if err != nil {
		return send.Receipt{}, &send.Failure{Outcome: send.Permanent, Code: "content",
			Text: "the message cannot be written as JSON"}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		if _, there := s.seen[m.Key]; !there {
			if _, err := s.out.Write(text); err != nil {
				return send.Receipt{}, err
			}
			s.seen[m.Key] = int64(len(s.seen))
		}
	} else if err := s.append(m.Key, text); err != nil {
		return send.Receipt{}, err
	}
	return send.Receipt{ProviderMessageID: fmt.Sprintf("line-at-%d", s.seen[m.Key])}, nil
}

// append locks the file, reads lines of other processes, and appends a line.
func (s *Sender) append(key string, text []byte) error {
	surely := func(what string, err error) error {
		return &send.Failure{Outcome: send.Temporary, Code: "file", Text: fmt.Sprintf("%s: %v", what, err), Down: true}
	}
	if err := syscall.Flock(int(s.file.Fd()), syscall.LOCK_EX); err != nil {
		return surely("lock", err)
	}
	defer func() { _ = syscall.Flock(int(s.file.Fd()), syscall.LOCK_UN) }()
	if err := s.catchUp(); err != nil {
		return surely("read", err)
	}
	if _, there := s.seen[key]; there {
		return nil
	}
	if _, err := s.file.Write(text); err != nil {
		if torn := s.file.Truncate(s.read); torn != nil {
			return errors.Join(err, torn)
		}
		return surely("write", err)
	}
	s.seen[key] = s.read
	s.read += int64(len(text))
	return nil
}

// catchUp reads new lines of the file. It truncates an incomplete last line of a crashed process, whose Send never
// returned.
func (s *Sender) catchUp() error {
	info, err := s.file.Stat()
	if err != nil {
		return err
	}
	if info.Size() < s.read { // the file was truncated
		s.read, s.seen = 0, map[string]int64{}
	}
	if info.Size() == s.read {
		return nil
	}
	r := bufio.NewReader(io.NewSectionReader(s.file, s.read, info.Size()-s.read))
	for {
		text, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			if len(text) > 0 {
				return s.file.Truncate(s.read)
			}
			return nil
		}
		if err != nil {
			return err
		}
		var l line
		if err := json.Unmarshal(text, &l); err == nil && l.Key != "" {
			s.seen[l.Key] = s.read
		}
		s.read += int64(len(text))
	}
}

func (s *Sender) Close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}

func encode(m *send.Message) ([]byte, error) {
	c := &m.Content
	l := line{At: time.Now().UTC(), Channel: m.Channel, Tenant: m.Tenant, ID: m.ID, Key: m.Key, Attempt: m.Attempt,
		Recipient: m.Recipient,
		Subject:   c.Subject, Text: c.Text, HTML: c.HTML, Template: c.Template, Params: c.Params, Type: c.Type,
		Data: c.Data, Headers: c.Headers}
	for _, a := range c.Attachments {
		l.Attachments = append(l.Attachments, attachment{a.Name, a.Type, len(a.Data)})
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false) // easier to read
	err := e.Encode(&l)
	return text.Bytes(), err
}
