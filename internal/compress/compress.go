// Package compress compresses recorded answers with DEFLATE (RFC 1951).
package compress

import (
	"bytes"
	"compress/flate"
	"fmt"
	"io"
)

// MinSize is the size in bytes from which compression pays off.
const MinSize = 8 << 10

// Append appends compressed b to prefix.
func Append(prefix, b []byte) ([]byte, error) {
	out := bytes.NewBuffer(prefix)
	w, err := flate.NewWriter(out, flate.BestSpeed)
	if err != nil {
		return nil, fmt.Errorf("compress: %w", err)
	}
	if _, err := w.Write(b); err != nil {
		return nil, fmt.Errorf("compress: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("compress: %w", err)
	}
	return out.Bytes(), nil
}

// Decompress reverses Append.
func Decompress(b []byte) ([]byte, error) {
	whole, err := io.ReadAll(flate.NewReader(bytes.NewReader(b)))
	if err != nil {
		return nil, fmt.Errorf("decompress: %w", err)
	}
	return whole, nil
}
