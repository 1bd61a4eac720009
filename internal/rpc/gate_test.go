package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/fault"
)

func TestInternalErrorsDoNotLeakTheirText(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for _, x := range []struct {
		ctx  context.Context
		err  error
		want *fault.Reason
	}{
		{context.Background(), errors.New("secret"), fault.InternalError},
		{context.Background(), &pgconn.PgError{Code: "23505", Message: "secret"}, fault.InternalError},
		{context.Background(), fmt.Errorf("secret: %w", &pgconn.PgError{Code: "57P01"}), fault.DatabaseUnavailable},
		{context.Background(), fmt.Errorf("secret: %w", io.ErrUnexpectedEOF), fault.DatabaseUnavailable},
		{context.Background(), panicErr(), fault.InternalError},
		{ended, fmt.Errorf("secret: %w", context.Canceled), fault.NotRun},
		{ended, connect.NewError(connect.CodeUnknown, errors.New("secret")), fault.NotRun},
		{ended, errors.New("secret"), fault.InternalError},
		{ended, fault.Busy.New("busy").Because(errors.New("secret")), fault.Busy},
	} {
		f := faultOf(x.ctx, x.err)
		e := connectError(f, "r")
		if f.Reason != x.want || errorSays(e, "secret") {
			t.Errorf("%v: %s, %v", x.err, f.Reason.Name, e)
		}
	}
}

func panicErr() error { return panicked(context.Background(), connect.Spec{}, nil, "secret") }

func errorSays(e *connect.Error, text string) bool {
	all := e.Message()
	for _, d := range e.Details() {
		all += string(d.Bytes())
	}
	return strings.Contains(all, text)
}

func TestFailureOfTheKeyLookupIsNoPanic(t *testing.T) {
	t.Parallel()
	g := &Gate{Authenticate: func(context.Context, string) (access.Identity, error) {
		return access.Identity{}, errors.New("a stored scope cannot be parsed")
	}}
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
	r.Header.Set("Authorization", "Bearer key")
	g.RequireAdmin(http.NotFoundHandler()).ServeHTTP(w, r)
	if w.Code != http.StatusServiceUnavailable || strings.Contains(w.Body.String(), "scope") {
		t.Error(w.Code, w.Body)
	}
}

func TestEscapedParameterOfCompressionIsSeen(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]bool{"compression=gzip": true, "compressio%6E=gzip": true, "base64=1": false} {
		if got := isZipped(httptest.NewRequest(http.MethodGet, "/?"+query, http.NoBody)); got != want {
			t.Errorf("%s: %v", query, got)
		}
	}
}
