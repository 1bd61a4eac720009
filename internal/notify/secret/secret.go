// Package secret is the master key: one secret of the server's configuration, of which all keys are derived
// that must not be in the database. It owns no tables.
//
// What it promises: who has the database alone can neither tell whom a keyed hash stands for, nor forge what
// is signed. A key that was derived once is derived again as long as the master stays the same; there is no
// way back from it to the master, or to another key.
package secret

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// Size of a master key and of every derived key, in bytes.
const Size = 32

// Missing is why a call is refused that needs the master key of a server that has none.
var Missing = fault.Define(fault.Reason{Name: "SECRET_NOT_CONFIGURED", Class: fault.System, Code: fault.Unavailable,
	Step: fault.RetrySameKey,
	Doc:  "The server was started without a master key, which this call requires: set --secrets-file. Nothing was done."})

// Master is a master key. It is never printed. A nil *Master is none: Check tells.
type Master struct{ key func() []byte } // not the bytes: what prints a struct with a Master in it prints none of them

// New makes a random one.
func New() *Master {
	b := make([]byte, Size)
	_, _ = rand.Read(b) // never fails: crypto/rand ends the program instead
	return of(b)
}

func of(b []byte) *Master { return &Master{func() []byte { return b }} }

var errForm = errors.New("a master key must be 32 random bytes in base64: make one with `openssl rand -base64 32`")

// Parse reads a key in base64, with spaces around it or not.
func Parse(text string) (*Master, error) {
	b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil || len(b) != Size {
		return nil, errForm // without what was given: it may be a secret
	}
	return of(b), nil
}

// ReadFile reads a key from a file, which nobody else may read.
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

// KeepFile reads a key from a file, and makes both when there is none: for development.
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
	// Linked, not renamed: of two who make one at once the first wins, and both use it.
	if err := os.Link(temp.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return ReadFile(path)
}

// Check tells what is wrong when there is no key. Returns fault SECRET_NOT_CONFIGURED.
func (m *Master) Check() error {
	if m == nil {
		return Missing.New("the server has no master key: start it with --secrets-file")
	}
	return nil
}

// Derive makes the key of 32 bytes for a purpose, such as notify.recipient, and what tells several of one
// purpose apart, such as the number of a tenant. The purpose is never changed once keys of it are in use. It
// panics on a nil *Master: who may have none asks Check first.
func (m *Master) Derive(purpose string, parts ...string) []byte {
	var info []byte
	for _, p := range append([]string{purpose}, parts...) {
		info = append(binary.AppendUvarint(info, uint64(len(p))), p...)
	}
	key, err := hkdf.Key(sha256.New, m.key(), nil, string(info), Size)
	if err != nil {
		panic(err) // only of a length that SHA-256 cannot give
	}
	return key
}

// sealed is what a sealed text begins with. No JSON does.
const sealed = 0

// Seal hides a text from who has the database alone, with a key as of Derive.
func (m *Master) Seal(text []byte, purpose string, parts ...string) []byte {
	return m.box(purpose, parts).Seal([]byte{sealed}, nil, text, nil)
}

// Open reads what Seal hid with the same key. Any other text is given back as it is, also by a nil *Master.
func (m *Master) Open(text []byte, purpose string, parts ...string) ([]byte, error) {
	if !Sealed(text) {
		return text, nil
	}
	if err := m.Check(); err != nil {
		return nil, err
	}
	return m.box(purpose, parts).Open(nil, nil, text[1:], nil)
}

// Sealed tells whether Seal made a text.
func Sealed(text []byte) bool { return len(text) > 0 && text[0] == sealed }

func (m *Master) box(purpose string, parts []string) cipher.AEAD {
	block, err := aes.NewCipher(m.Derive(purpose, parts...))
	if err != nil {
		panic(err) // only of a key of another length
	}
	box, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // only of another cipher
	}
	return box
}

// Format prints nothing of it, whatever it is asked for.
func (m Master) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("[secret]")) }

// MarshalText says the same.
func (m Master) MarshalText() ([]byte, error) { return []byte("[secret]"), nil }
