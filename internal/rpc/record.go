package rpc

import (
	"bytes"
	"compress/flate"
	"fmt"
	"io"
)

// packFrom is the size from which recorded answers are packed. One of 10,000 accounts has 2 MB, which are
// very much alike.
const packFrom = 8 << 10

// packed marks what is packed: no message begins with a zero, which would be a field without number.
const packed = 0

// pack makes a recorded answer small.
func pack(answer []byte) ([]byte, error) {
	if len(answer) < packFrom {
		return answer, nil
	}
	var b bytes.Buffer
	b.WriteByte(packed)
	w, err := flate.NewWriter(&b, flate.BestSpeed)
	if err != nil {
		return nil, fmt.Errorf("pack an answer: %w", err)
	}
	if _, err := w.Write(answer); err != nil {
		return nil, fmt.Errorf("pack an answer: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("pack an answer: %w", err)
	}
	return b.Bytes(), nil
}

// unpack gives an answer back, byte for byte.
func unpack(recorded []byte) ([]byte, error) {
	if len(recorded) == 0 || recorded[0] != packed {
		return recorded, nil
	}
	answer, err := io.ReadAll(flate.NewReader(bytes.NewReader(recorded[1:])))
	if err != nil {
		return nil, fmt.Errorf("unpack a recorded answer: %w", err)
	}
	return answer, nil
}
