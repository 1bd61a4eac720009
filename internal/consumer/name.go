package consumer

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// maxID is the inbox's limit.
const maxID = 256

// nameOf returns the id of a message. For a message without an id it returns a hash of the body and false: the
// hash makes the message visible to operators, but the message must not take effect, because different messages
// may have equal bodies.
func (s *Settings) nameOf(d *Delivery) (id string, ok bool) {
	how, name, _ := strings.Cut(s.MessageID, ":")
	switch how {
	case "position":
		id = d.Position
	case "broker":
		id = d.ID
	case "header":
		id = d.Header[name]
	case "field":
		id = field(d.Body, name)
	}
	if id == "" || len(id) > maxID || !utf8.ValidString(id) || strings.Contains(id, "\x00") {
		return "sha256:" + hashOf(d.Body), false
	}
	return id, true
}

func hashOf(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// field reads a text or number from a JSON document by a dotted path; empty: absent.
func field(body []byte, path string) string {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	var at any
	if d.Decode(&at) != nil {
		return ""
	}
	for name := range strings.SplitSeq(path, ".") {
		in, _ := at.(map[string]any)
		at = in[name]
	}
	switch v := at.(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	}
	return ""
}
