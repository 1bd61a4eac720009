package emailtest

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"strings"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
)

// newLogin returns the server side of a SASL mechanism. done is called after success.
func newLogin(mechanism string, done func()) (sasl.Server, error) {
	check := func(user, password string) error {
		if user != User || password != Password {
			return smtp.ErrAuthFailed
		}
		done()
		return nil
	}
	switch mechanism {
	case "PLAIN":
		return sasl.NewPlainServer(func(_, user, password string) error { return check(user, password) }), nil
	case "LOGIN":
		return &login{check: check}, nil
	case "XOAUTH2":
		return &xoauth2{check: check}, nil
	case "SCRAM-SHA-256":
		return &scram{done: done}, nil
	}
	return nil, smtp.ErrAuthUnknownMechanism
}

type login struct {
	check func(user, password string) error
	step  int
	user  string
}

func (l *login) Next(response []byte) (challenge []byte, done bool, err error) {
	l.step++
	switch l.step {
	case 1:
		return []byte("Username:"), false, nil
	case 2:
		l.user = string(response)
		return []byte("Password:"), false, nil
	}
	return nil, true, l.check(l.user, string(response))
}

type xoauth2 struct {
	check func(user, token string) error
}

func (x *xoauth2) Next(response []byte) (challenge []byte, done bool, err error) {
	user, token, ok := strings.Cut(strings.TrimSuffix(string(response), "\x01\x01"), "\x01auth=Bearer ")
	if !ok {
		return nil, false, smtp.ErrAuthFailed
	}
	return nil, true, x.check(strings.TrimPrefix(user, "user="), token)
}

// scram implements SCRAM-SHA-256 (RFC 7677).
type scram struct {
	done        func()
	step        int
	bare, first string // the client's first message without its header, and the server's
	nonce       string
	salted      []byte
}

func (s *scram) Next(response []byte) (challenge []byte, done bool, err error) {
	s.step++
	switch s.step {
	case 1:
		return []byte{}, false, nil
	case 2:
		s.bare = strings.TrimPrefix(string(response), "n,,")
		s.nonce = part(s.bare, "r=") + "server"
		salt := []byte("a salt of some bytes")
		if s.salted, err = pbkdf2.Key(sha256.New, Password, salt, 4096, 32); err != nil || part(s.bare, "n=") != User {
			return nil, false, smtp.ErrAuthFailed
		}
		s.first = "r=" + s.nonce + ",s=" + base64.StdEncoding.EncodeToString(salt) + ",i=4096"
		return []byte(s.first), false, nil
	case 3:
		final := string(response)
		without, _, ok := strings.Cut(final, ",p=")
		if !ok || part(final, "r=") != s.nonce {
			return nil, false, errors.New("not the nonce")
		}
		signed := []byte(s.bare + "," + s.first + "," + without)
		key := mac(s.salted, []byte("Client Key"))
		stored := sha256.Sum256(key)
		signature := mac(stored[:], signed)
		proof, err := base64.StdEncoding.DecodeString(part(final, "p="))
		if err != nil || len(proof) != len(signature) {
			return nil, false, smtp.ErrAuthFailed
		}
		subtle.XORBytes(proof, proof, signature)
		if subtle.ConstantTimeCompare(proof, key) != 1 {
			return nil, false, smtp.ErrAuthFailed
		}
		answer := mac(mac(s.salted, []byte("Server Key")), signed)
		return []byte("v=" + base64.StdEncoding.EncodeToString(answer)), false, nil
	}
	s.done()
	return nil, true, nil
}

func part(message, name string) string {
	for p := range strings.SplitSeq(message, ",") {
		if value, ok := strings.CutPrefix(p, name); ok {
			return value
		}
	}
	return ""
}

func mac(key, text []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(text)
	return h.Sum(nil)
}
