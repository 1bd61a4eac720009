package importer

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"os"
)

// Source is a file that is read twice: once to check all of it, once to send it.
type Source struct {
	file *os.File
	temp bool
	sum  hash.Hash
}

// OpenSource opens a file for two passes; stdin ("-") is copied to a temporary file first.
func OpenSource(path string, stdin io.Reader) (*Source, error) {
	if path == "-" {
		return Spool(stdin)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err == nil && !info.Mode().IsRegular() { // a pipe can be read only once
		defer f.Close()
		return Spool(f)
	}
	return &Source{file: f}, nil
}

// Spool copies a stream to a temporary file.
func Spool(r io.Reader) (*Source, error) {
	f, err := os.CreateTemp("", "ledgerd-import-*")
	if err != nil {
		return nil, err
	}
	s := &Source{file: f, temp: true}
	if _, err := io.Copy(f, r); err != nil {
		s.Close()
		return nil, fmt.Errorf("store the input in a temporary file: %w", err)
	}
	return s, nil
}

// First reads the file from the beginning and hashes it, after the settings.
func (s *Source) First(settings ...string) (io.Reader, error) {
	s.sum = sha256.New()
	fmt.Fprintf(s.sum, "%q\n", settings)
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return bufio.NewReaderSize(io.TeeReader(s.file, s.sum), 1<<16), nil
}

// Hash returns the hash of the settings and the first pass.
func (s *Source) Hash() (string, error) {
	if _, err := io.Copy(s.sum, s.file); err != nil {
		return "", err
	}
	return hex.EncodeToString(s.sum.Sum(nil)[:10]), nil
}

// Again reads the file from the beginning once more.
func (s *Source) Again() (io.Reader, error) {
	_, err := s.file.Seek(0, io.SeekStart)
	return bufio.NewReaderSize(s.file, 1<<16), err
}

// Close closes the file and removes it if it is temporary.
func (s *Source) Close() {
	_ = s.file.Close()
	if s.temp {
		_ = os.Remove(s.file.Name())
	}
}
