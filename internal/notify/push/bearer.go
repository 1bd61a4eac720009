package push

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// bearer caches an access token and renews it after its life.
type bearer struct {
	make  func(context.Context) (token string, until time.Time, failed *send.Failure)
	mu    sync.Mutex
	token string
	until time.Time
}

// get returns a token. One goroutine renews it while others wait.
func (b *bearer) get(ctx context.Context) (string, *send.Failure) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.token != "" && time.Now().Before(b.until) {
		return b.token, nil
	}
	token, until, failed := b.make(ctx)
	if failed != nil {
		return "", failed
	}
	b.token, b.until = token, until
	return token, nil
}

// drop discards a token that was refused, unless it was renewed already.
func (b *bearer) drop(token string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.token == token {
		b.token = ""
	}
}

// privateKey parses a PKCS 8 private key in PEM, the format of Google and Apple.
func privateKey[K any](text string) (key K, err error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return key, errors.New("the private key is not in PEM")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return key, errors.New("the private key is not in PKCS 8") // omit the input
	}
	key, ok := parsed.(K)
	if !ok {
		return key, fmt.Errorf("the private key has the wrong type: %T is required", key)
	}
	return key, nil
}

// jwt returns a signed JSON Web Token (RFC 7519).
func jwt(header, claims any, sign func(hash []byte) ([]byte, error)) (string, error) {
	h, err := json.Marshal(header)
	if err != nil {
		return "", err
	}
	c, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	signed := base64.RawURLEncoding.EncodeToString(h) + "." + base64.RawURLEncoding.EncodeToString(c)
	hash := sha256.Sum256([]byte(signed))
	s, err := sign(hash[:])
	if err != nil {
		return "", err
	}
	return signed + "." + base64.RawURLEncoding.EncodeToString(s), nil
}

// rs256 and es256 return signers as in RFC 7518.
func rs256(key *rsa.PrivateKey) func([]byte) ([]byte, error) {
	return func(hash []byte) ([]byte, error) { return rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, hash) }
}

func es256(key *ecdsa.PrivateKey) func([]byte) ([]byte, error) {
	return func(hash []byte) ([]byte, error) {
		r, s, err := ecdsa.Sign(rand.Reader, key, hash)
		if err != nil {
			return nil, err
		}
		both := make([]byte, 64)
		r.FillBytes(both[:32])
		s.FillBytes(both[32:])
		return both, nil
	}
}

func isP256(key *ecdsa.PrivateKey) bool { return key.Curve == elliptic.P256() }
