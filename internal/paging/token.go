// Package paging makes and reads page tokens.
package paging

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// TokenInvalid refuses a page token that was not made for this request.
var TokenInvalid = fault.Define(fault.Reason{Name: "PAGE_TOKEN_INVALID", Class: fault.BadRequest,
	Code: fault.InvalidArgument, Step: fault.Fix,
	Doc: "The page token was issued by another method or for other parameters: start again without one."})

// A page token is base64url of: a version, a binding, and the place after which the next page
// begins, as texts with their lengths. The binding is a hash over the list's name, the tenant, the
// filter and the place, so that a token neither passes from one request to another nor survives
// damage. It is no secret: what a made-up token can reach is what its tenant may read anyway.
const (
	tokenVersion = 1
	tokenBinding = 8
)

// List is what a token is bound to: which list of which tenant, with which filter.
type List []string

// Of names a list: its name, its tenant, its filter.
func Of(name string, tenant int32, filter ...string) List {
	return append(List{name, strconv.Itoa(int(tenant))}, filter...)
}

// Token is the token of a place.
func (l List) Token(place ...string) string {
	body := texts(nil, place)
	b := append([]byte{tokenVersion}, l.binding(body)...)
	return base64.RawURLEncoding.EncodeToString(append(b, body...))
}

// After reads the place in a token, which has n texts; none for the empty token.
func (l List) After(token string, n int) ([]string, error) {
	if token == "" {
		return nil, nil
	}
	if place, ok := l.read(token); ok && len(place) == n {
		return place, nil
	}
	return nil, TokenInvalid.New("page_token: was issued by another method or for other parameters; start again without one").
		WithField("page_token", "was issued by another method or for other parameters")
}

// AfterNumber reads the place in a token that is one number, or gives first for the empty token.
func (l List) AfterNumber(token string, first int64) (int64, error) {
	place, err := l.After(token, 1)
	if place == nil || err != nil {
		return first, err
	}
	n, err := strconv.ParseInt(place[0], 10, 64)
	if err != nil {
		return 0, TokenInvalid.New("page_token: was issued by another method or for other parameters; start again without one")
	}
	return n, nil
}

// TokenNumber is the token of a place that is one number.
func (l List) TokenNumber(place int64) string { return l.Token(strconv.FormatInt(place, 10)) }

func (l List) read(token string) (place []string, ok bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || strings.ContainsAny(token, "\r\n") || len(b) < 1+tokenBinding || b[0] != tokenVersion {
		return nil, false
	}
	body := b[1+tokenBinding:]
	if string(b[1:1+tokenBinding]) != string(l.binding(body)) {
		return nil, false
	}
	for len(body) > 0 {
		size, n := binary.Uvarint(body) // our own, if the binding holds; never trusted all the same
		if n <= 0 || size > uint64(len(body)-n) {
			return nil, false
		}
		end := n + int(size)
		if !utf8.Valid(body[n:end]) || bytes.IndexByte(body[n:end], 0) >= 0 {
			return nil, false
		}
		place = append(place, string(body[n:end]))
		body = body[end:]
	}
	return place, true
}

func (l List) binding(body []byte) []byte {
	b := binary.AppendUvarint([]byte{tokenVersion}, uint64(len(l)))
	sum := sha256.Sum256(append(texts(b, l), body...))
	return sum[:tokenBinding]
}

// texts appends each text after its length.
func texts(b []byte, all []string) []byte {
	for _, s := range all {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	return b
}
