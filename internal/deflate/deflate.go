// Package deflate makes recorded answers small (RFC 1951), and whole again.
package deflate

import (
	"bytes"
	"compress/flate"
	"fmt"
	"io"
)

// From is the size in bytes from which it is worth it.
const From = 8 << 10

// Append deflates b behind prefix.
func Append(prefix, b []byte) ([]byte, error) {
	out := bytes.NewBuffer(prefix)
	w, err := flate.NewWriter(out, flate.BestSpeed)
	if err != nil {
		return nil, fmt.Errorf("deflate: %w", err)
	}
	if _, err := w.Write(b); err != nil {
		return nil, fmt.Errorf("deflate: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("deflate: %w", err)
	}
	return out.Bytes(), nil
}

// Inflate gives back what was deflated, byte for byte.
func Inflate(b []byte) ([]byte, error) {
	whole, err := io.ReadAll(flate.NewReader(bytes.NewReader(b)))
	if err != nil {
		return nil, fmt.Errorf("inflate: %w", err)
	}
	return whole, nil
}
