// Package paging reads lists page by page, and encodes and decodes page tokens.
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

// TokenInvalid refuses a page token issued for another request.
var TokenInvalid = fault.Register(fault.Reason{Name: "PAGE_TOKEN_INVALID", Class: fault.BadRequest,
	Code: fault.InvalidArgument, Step: fault.Fix,
	Doc: "The page token is not one that this call issued with these parameters: start again without one."})

// A page token is base64url of a version, a binding, and the position after which the next page begins, as
// length-prefixed texts. The binding is a hash over the list's name, tenant, filter and position. It rejects
// damaged tokens and tokens of other requests. It is not a secret: a forged token can only reach rows that its
// tenant may read anyway.
const (
	tokenVersion = 1
	tokenBinding = 8
)

// List identifies the list that a token is bound to: its name, tenant and filter.
type List []string

func Of(name string, tenant int32, filter ...string) List {
	return append(List{name, strconv.Itoa(int(tenant))}, filter...)
}

// Token encodes a position.
func (l List) Token(place ...string) string {
	body := texts(nil, place)
	b := append([]byte{tokenVersion}, l.binding(body)...)
	return base64.RawURLEncoding.EncodeToString(append(b, body...))
}

// After decodes the position in a token, which has n texts; an empty token has none.
func (l List) After(token string, n int) ([]string, error) {
	if token == "" {
		return nil, nil
	}
	if place, ok := l.read(token); ok && len(place) == n {
		return place, nil
	}
	return nil, invalid()
}

func invalid() error {
	const problem = "is not a token that this call issued with these parameters"
	return TokenInvalid.New("page_token: %s; start again without one", problem).WithField("page_token", problem)
}

// AfterNumber decodes a position that is one number; an empty token yields first.
func (l List) AfterNumber(token string, first int64) (int64, error) {
	place, err := l.After(token, 1)
	if place == nil || err != nil {
		return first, err
	}
	n, err := strconv.ParseInt(place[0], 10, 64)
	if err != nil {
		return 0, invalid()
	}
	return n, nil
}

// TokenNumber encodes a position that is one number.
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
		size, n := binary.Uvarint(body) // ours if the binding matches; not trusted anyway
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

// texts appends texts with their lengths.
func texts(b []byte, all []string) []byte {
	for _, s := range all {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	return b
}
