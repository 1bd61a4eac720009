package work

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/ledgerd/ledgerd/internal/compress"
)

// Header is one header of an answer.
type Header struct {
	Name  string
	Value string
}

// Answer is the caller's recorded answer to a piece of work.
type Answer struct {
	Status     int32
	Headers    []Header
	bytes      int    // uncompressed size of the body
	body       []byte // compressed if compressed
	compressed bool
	sum        [sha256.Size]byte
}

// NewAnswer makes an answer to record; it compresses large bodies.
func NewAnswer(status int32, headers []Header, body []byte) (*Answer, error) {
	a := &Answer{Status: status, Headers: headers, bytes: len(body), body: body}
	a.sum = sha256.Sum256(a.canonical(body))
	if len(body) < compress.MinSize {
		return a, nil
	}
	small, err := compress.Append(nil, body)
	if err != nil {
		return nil, fmt.Errorf("record an answer: %w", err)
	}
	if len(small) < len(body) {
		a.body, a.compressed = small, true
	}
	return a, nil
}

// Body returns the original body, byte for byte.
func (a *Answer) Body() ([]byte, error) {
	if !a.compressed {
		return a.body, nil
	}
	body, err := compress.Decompress(a.body)
	if err != nil {
		return nil, fmt.Errorf("read a recorded answer: %w", err)
	}
	return body, nil
}

// canonical encodes status, headers and body, each text with a length prefix.
func (a *Answer) canonical(body []byte) []byte {
	b := binary.AppendVarint([]byte{1}, int64(a.Status))
	b = binary.AppendUvarint(b, uint64(len(a.Headers)))
	for _, h := range a.Headers {
		b = append(binary.AppendUvarint(b, uint64(len(h.Name))), h.Name...)
		b = append(binary.AppendUvarint(b, uint64(len(h.Value))), h.Value...)
	}
	return append(binary.AppendUvarint(b, uint64(len(body))), body...)
}

// hash identifies an outcome: the state and the answer.
func (a *Answer) hash(s State) []byte {
	sum := sha256.Sum256(append([]byte(s+"\n"), a.sum[:]...))
	return sum[:]
}
