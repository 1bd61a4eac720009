package pg_test

import (
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/pg"
)

// An error about the database URL names the parameter that is wrong, and never shows the password.
func TestErrorsOfTheURLNameTheParameter(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"postgres://u:secret@h/db?sslmode=foo":                         "sslmode",
		"postgres://u:secret@h/db?target_session_attrs=foo":            "target_session_attrs",
		"postgres://u:secret@h/db?default_query_exec_mode=cached":      "default_query_exec_mode",
		"user=a password=secret port=x":                                "port",
		"secret":                                                       "must be a postgres:// URL",
		"postgres://u:secret@h:x:y/db?sslmode=disable&pool_max_conns=": "port",
	} {
		_, err := pg.Open(t.Context(), url, 1)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %s", url, err, want)
		}
	}
}
