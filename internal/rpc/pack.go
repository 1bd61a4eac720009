package rpc

import (
	"fmt"

	"github.com/ledgerd/ledgerd/internal/deflate"
)

// packed marks what is packed: no message begins with a zero, which would be a field without number.
const packed = 0

// pack makes a recorded answer small. One of 10,000 accounts has 2 MB, which are very much alike.
func pack(answer []byte) ([]byte, error) {
	if len(answer) < deflate.From {
		return answer, nil
	}
	b, err := deflate.Append([]byte{packed}, answer)
	if err != nil {
		return nil, fmt.Errorf("pack an answer: %w", err)
	}
	return b, nil
}

// unpack gives an answer back, byte for byte.
func unpack(recorded []byte) ([]byte, error) {
	if len(recorded) == 0 || recorded[0] != packed {
		return recorded, nil
	}
	answer, err := deflate.Inflate(recorded[1:])
	if err != nil {
		return nil, fmt.Errorf("unpack a recorded answer: %w", err)
	}
	return answer, nil
}
