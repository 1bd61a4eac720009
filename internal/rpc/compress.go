package rpc

import (
	"fmt"

	"github.com/ledgerd/ledgerd/internal/compress"
)

// compressed is the first byte of a compressed answer. No message begins with a zero: it would be a field without
// number.
const compressed = 0

// compressAnswer makes a large recorded answer small. One of 10,000 accounts has 2 MB, which are very much alike.
func compressAnswer(answer []byte) ([]byte, error) {
	if len(answer) < compress.MinSize {
		return answer, nil
	}
	b, err := compress.Append([]byte{compressed}, answer)
	if err != nil {
		return nil, fmt.Errorf("an answer: %w", err)
	}
	return b, nil
}

// decompressAnswer returns a recorded answer, byte for byte.
func decompressAnswer(recorded []byte) ([]byte, error) {
	if len(recorded) == 0 || recorded[0] != compressed {
		return recorded, nil
	}
	answer, err := compress.Decompress(recorded[1:])
	if err != nil {
		return nil, fmt.Errorf("a recorded answer: %w", err)
	}
	return answer, nil
}
