package once

import (
	"encoding/binary"
	"net/http"
	"strings"

	"github.com/ledgerd/ledgerd/client"
)

const maxKey = 255

// keyOf returns the request's Idempotency-Key: 1 to 255 printable ASCII characters, bare or quoted as a
// structured field string (RFC 8941). Empty: no key. False: an invalid key, or several.
func keyOf(h http.Header) (key string, ok bool) {
	values := h.Values(client.KeyHeader)
	if len(values) == 0 {
		return "", true
	}
	key, ok = values[0], len(values) == 1
	if strings.HasPrefix(key, `"`) {
		key, ok = unquoted(key)
	}
	for i := range len(key) {
		ok = ok && key[i] >= ' ' && key[i] <= '~'
	}
	return key, ok && len(key) >= 1 && len(key) <= maxKey && len(values) == 1
}

func unquoted(s string) (string, bool) {
	if len(s) < 2 || s[len(s)-1] != '"' {
		return "", false
	}
	var out strings.Builder
	for in := s[1 : len(s)-1]; in != ""; in = in[1:] {
		switch {
		case in[0] == '"':
			return "", false
		case in[0] == '\\':
			if in = in[1:]; in == "" || in[0] != '"' && in[0] != '\\' {
				return "", false
			}
		}
		out.WriteByte(in[0])
	}
	return out.String(), true
}

// fingerprintVersion changes with the content of fingerprints.
const fingerprintVersion = 1

// appendText appends a text with its length, so that different lists of texts have different encodings.
func appendText[T string | []byte](b []byte, s T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}
