// Package httpbody reads the bodies of callbacks: requests whose senders are known only once the body was read.
package httpbody

import (
	"bytes"
	"errors"
	"io"
	"net/http"

	"golang.org/x/sync/semaphore"
)

const (
	// small is the size up to which a body needs no room, so that large bodies that arrive slowly do not delay ordinary
	// callbacks.
	small = 32 << 10
	// room limits the larger bodies that the process reads at a time, in bytes. Each counts with its maximum size.
	room = 16 << 20
)

var larger = semaphore.NewWeighted(room)

// ErrBusy refuses a body for which there is no room now: the sender has to send it again.
var ErrBusy = errors.New("the server reads too many large bodies now")

// Read reads a body of at most most bytes, and calls use with it. A body larger than small reserves most bytes of room
// until use returns. Returns ErrBusy, or the error of reading; then use is not called.
func Read(w http.ResponseWriter, r *http.Request, most int64, use func(body []byte)) error {
	in, body := http.MaxBytesReader(w, r.Body, most), new(bytes.Buffer)
	_, err := io.CopyN(body, in, small+1)
	if err == nil {
		if !larger.TryAcquire(most) {
			return ErrBusy
		}
		defer larger.Release(most)
		_, err = io.Copy(body, in)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	use(body.Bytes())
	return nil
}
