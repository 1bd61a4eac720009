package once

import (
	"testing"

	"connectrpc.com/connect"

	"github.com/ledgerd/ledgerd/client"
)

// Even a middleware that fails open must not run work that another attempt has taken over.
func TestOnlyAMissingAnswerCountsAsUnreachable(t *testing.T) {
	for name, x := range map[string]struct {
		err  client.Error
		want bool
	}{
		"a lost connection": {client.Error{Code: connect.CodeUnavailable}, true},
		"a system failure":  {client.Error{Code: connect.CodeUnavailable, Class: client.ClassSystem}, true},
		"busy":              {client.Error{Code: connect.CodeAborted, Class: client.ClassConflict}, true},
		"taken over": {client.Error{Code: connect.CodeAborted, Class: client.ClassConflict,
			Reason: client.ReasonFenceLost}, false},
		"another request": {client.Error{Code: connect.CodeAlreadyExists, Class: client.ClassBadRequest,
			Reason: client.ReasonWorkKeyReused}, false},
		"a key that is no key": {client.Error{Code: connect.CodeUnauthenticated}, false},
	} {
		if got := unreachable(&x.err); got != x.want {
			t.Errorf("%s: unreachable is %v", name, got)
		}
	}
}
