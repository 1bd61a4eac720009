// Package secret holds the master key, which is part of the server's configuration, and the root secret, which the
// master key opens. All keys that must not be in the database are derived from the root secret. The package owns the
// table secret_roots.
//
// Promises: access to the database alone neither reveals the input of a keyed hash, nor allows forging a signature.
// Derived keys never change: another master key seals the same root secret. A derived key reveals neither the root
// secret nor another derived key.
package secret

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// Size of a master key and of every derived key, in bytes.
const Size = 32

// Missing is the reason of calls that need the master key, on a server without one.
var Missing = fault.Register(fault.Reason{Name: "SECRET_NOT_CONFIGURED", Class: fault.System, Code: fault.Unavailable,
	Step: fault.RetrySameKey,
	Doc: "The server was started without a master key, which this call requires: set --secrets-file. " +
		"Nothing was done."})

// Master is a secret: the master keys of a server, newest first, or the root secret that one of them opens (see Root).
// It is never printed. A nil *Master means that none is configured, see Check.
type Master struct{ keys func() [][]byte } // a func: printing a struct that contains a Master reveals nothing

// New returns a random key.
func New() *Master {
	b := make([]byte, Size)
	_, _ = rand.Read(b) // never fails: crypto/rand crashes the program instead
	return of(b)
}

func of(keys ...[]byte) *Master { return &Master{func() [][]byte { return keys }} }

var errForm = errors.New("a master key must be 32 random bytes in base64: make one with `openssl rand -base64 32`")

// Parse decodes keys from base64, one a line, the newest first.
func Parse(text string) (*Master, error) {
	var keys [][]byte
	for _, line := range strings.Fields(text) {
		b, err := base64.StdEncoding.DecodeString(line)
		if err != nil || len(b) != Size {
			return nil, errForm // omit the input: it may be a secret
		}
		if slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, b) }) {
			return nil, fmt.Errorf("the master key %s is listed twice", idOf(b))
		}
		keys = append(keys, b)
	}
	if len(keys) == 0 {
		return nil, errForm
	}
	return of(keys...), nil
}

// key returns the newest key.
func (m *Master) key() []byte { return m.keys()[0] }

// IDs returns the ids of the keys, the newest first. Ids are no secrets.
func (m *Master) IDs() (ids []string) {
	for _, k := range m.keys() {
		ids = append(ids, idOf(k))
	}
	return ids
}

// idOf derives the id of a key.
func idOf(key []byte) string { return hex.EncodeToString(of(key).Derive("secret.id")[:4]) }

// ReadFile reads keys from a file. The file must not be accessible to other users.
func ReadFile(path string) (*Master, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o007 != 0 {
		return nil, fmt.Errorf("%s: other users can read or change the file: chmod 600 %[1]s", path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	m, err := Parse(string(b))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// KeepFile reads a key from a file. If the file does not exist, it writes a new key, for development.
func KeepFile(path string) (*Master, error) {
	m, err := ReadFile(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return m, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	fresh := New()
	temp, err := os.CreateTemp(filepath.Dir(path), ".secret-*") // mode 0600
	if err != nil {
		return nil, err
	}
	defer os.Remove(temp.Name())
	_, err = fmt.Fprintln(temp, base64.StdEncoding.EncodeToString(fresh.key()))
	if err = errors.Join(err, temp.Sync(), temp.Close()); err != nil {
		return nil, err
	}
	// Link instead of rename: of two concurrent writers the first wins, and both use its key.
	if err := os.Link(temp.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return ReadFile(path)
}

// Check returns fault SECRET_NOT_CONFIGURED if there is no key.
func (m *Master) Check() error {
	if m == nil {
		return Missing.New("the server has no master key: start it with --secrets-file")
	}
	return nil
}

// Derive returns the 32-byte key for a purpose, such as notify.recipient, and parts, such as a tenant number, from the
// newest key. Never change the purpose of keys in use. Derive panics on a nil *Master: call Check first.
func (m *Master) Derive(purpose string, parts ...string) []byte {
	var info []byte
	for _, p := range append([]string{purpose}, parts...) {
		info = append(binary.AppendUvarint(info, uint64(len(p))), p...)
	}
	key, err := hkdf.Key(sha256.New, m.key(), nil, string(info), Size)
	if err != nil {
		panic(err) // only if SHA-256 cannot expand to Size
	}
	return key
}

// sealed is the first byte of sealed text. JSON never begins with it.
const sealed = 0

// Seal encrypts a text with a derived key.
func (m *Master) Seal(text []byte, purpose string, parts ...string) []byte {
	return m.box(purpose, parts).Seal([]byte{sealed}, nil, text, nil)
}

// Open decrypts a sealed text. Other text is returned unchanged, even by a nil *Master.
func (m *Master) Open(text []byte, purpose string, parts ...string) ([]byte, error) {
	if !Sealed(text) {
		return text, nil
	}
	if err := m.Check(); err != nil {
		return nil, err
	}
	return m.box(purpose, parts).Open(nil, nil, text[1:], nil)
}

// Sealed reports whether a text is sealed.
func Sealed(text []byte) bool { return len(text) > 0 && text[0] == sealed }

func (m *Master) box(purpose string, parts []string) cipher.AEAD {
	block, err := aes.NewCipher(m.Derive(purpose, parts...))
	if err != nil {
		panic(err) // only if Size is not an AES key size
	}
	box, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // only if the block size is not 16
	}
	return box
}

// Format prints a placeholder for every verb.
func (m Master) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("[secret]")) }

// MarshalText returns the placeholder.
func (m Master) MarshalText() ([]byte, error) { return []byte("[secret]"), nil }
