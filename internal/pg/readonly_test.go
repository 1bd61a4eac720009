package pg_test

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// A session keeps the default with which it began.
func TestReadOnlySessionsAreNotKept(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	super := pgtest.Pool(t, db.SuperDSN)
	setDefault := func(to string) {
		t.Helper()
		if _, err := super.Exec(t.Context(), "alter role all in database "+db.Name+
			" set default_transaction_read_only = "+to); err != nil {
			t.Fatal(err)
		}
	}
	setDefault("on")
	pool, err := pg.Open(t.Context(), db.AllDSN, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for _, want := range []string{"on", "off"} {
		setting := ""
		if err := pool.QueryRow(t.Context(), "show transaction_read_only").Scan(&setting); err != nil || setting != want {
			t.Errorf("transaction_read_only is %q of %s, %v", setting, want, err)
		}
		setDefault("off")
	}
}
