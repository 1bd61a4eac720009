package httpbody

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
)

const most = 1 << 20

// read reads a body, and returns its length.
func read(in io.Reader, during func()) (n int, err error) {
	r := httptest.NewRequest(http.MethodPost, "/", in)
	err = Read(httptest.NewRecorder(), r, most, func(b []byte) {
		n = len(b)
		during()
	})
	return n, err
}

func TestBodiesAreReadWhole(t *testing.T) {
	for _, size := range []int{0, 1, small, small + 1, most} {
		if n, err := read(bytes.NewReader(make([]byte, size)), func() {}); n != size || err != nil {
			t.Errorf("%d bytes: %d, %v", size, n, err)
		}
	}
	if _, err := read(bytes.NewReader(make([]byte, most+1)), func() {}); err == nil {
		t.Error("a body that is too large was read")
	}
	broken := io.MultiReader(strings.NewReader("abc"), iotest.ErrReader(io.ErrUnexpectedEOF))
	if _, err := read(broken, func() {}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a broken body: %v", err)
	}
}

func TestLargeBodiesHaveALimitAndSmallOnesHaveNone(t *testing.T) {
	large := func() io.Reader { return bytes.NewReader(make([]byte, small+1)) }
	var nest func(n int)
	nest = func(n int) {
		if n > 0 {
			if _, err := read(large(), func() { nest(n - 1) }); err != nil {
				t.Fatalf("with %d more: %v", n, err)
			}
			return
		}
		if _, err := read(large(), func() {}); !errors.Is(err, ErrBusy) {
			t.Errorf("one more: %v", err)
		}
		if n, err := read(bytes.NewReader(make([]byte, small)), func() {}); n != small || err != nil {
			t.Errorf("a small one: %d, %v", n, err)
		}
	}
	nest(room / most)
	if _, err := read(large(), func() {}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
