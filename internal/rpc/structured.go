package rpc

import (
	"errors"
	"iter"
	"time"

	"github.com/dunglas/httpsfv"
)

// field is a header with one value and parameters: an Item of RFC 9651.
type field struct{ item httpsfv.Item }

var errMalformed = errors.New("is not a structured field item (RFC 9651): a value, then parameters after semicolons")

// parseField parses a header that was sent once. If a parameter is repeated, the last one counts.
func parseField(s string) (field, error) {
	item, err := httpsfv.UnmarshalItem([]string{s})
	if err != nil {
		return field{}, errMalformed
	}
	return field{item}, nil
}

// text returns the value if it is text: a string, a display string (not ASCII), or a token.
func (f field) text() (s string, ok bool) { return textOf(f.item.Value) }

// parameters yields names and values in order.
func (f field) parameters() iter.Seq2[string, any] {
	return func(yield func(string, any) bool) {
		for _, name := range f.item.Params.Names() {
			value, _ := f.item.Params.Get(name)
			if !yield(name, value) {
				return
			}
		}
	}
}

func textOf(value any) (s string, ok bool) {
	switch v := value.(type) {
	case string:
		return v, true
	case httpsfv.DisplayString:
		return string(v), true
	case httpsfv.Token:
		return string(v), true
	}
	return "", false
}

// secondsOf converts seconds, whole or with up to three decimals.
func secondsOf(value any) (d time.Duration, ok bool) {
	const most = 1 << 33 // seconds; more than any life
	switch v := value.(type) {
	case int64:
		return time.Duration(max(-most, min(v, most))) * time.Second, true
	case float64:
		return time.Duration(max(-most, min(v, most))*1000) * time.Millisecond, true
	}
	return 0, false
}
