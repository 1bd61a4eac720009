package once

import (
	"encoding/binary"
	"net/http"
	"strings"

	"github.com/ledgerd/ledgerd/client"
)

const maxKey = 255

// keyOf reads the Idempotency-Key of a request: 1 to 255 printable ASCII characters, bare or quoted as the
// structured field string of RFC 8941. Empty: there is none. False: it is bad, or there are several.
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

// fingerprintVersion changes when what goes into a fingerprint does.
const fingerprintVersion = 1

// appendText writes a text behind its length, so that no two lists of texts give the same bytes.
func appendText[T string | []byte](b []byte, s T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}
