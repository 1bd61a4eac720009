package consumer

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// maxID is what the inbox takes.
const maxID = 256

// nameOf finds the id of a message. One that has none gets a hash of its body, by which it can be seen
// and found, but must not take effect: another of the same content may be another message.
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

// field reads a text or a number from a JSON document, by names between points. Empty: it is not there.
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
