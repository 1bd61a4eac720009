package pg_test

import (
	"testing"
	"time"

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
	show := func() (setting string) {
		if err := pool.QueryRow(t.Context(), "show transaction_read_only").Scan(&setting); err != nil {
			t.Fatal(err)
		}
		return setting
	}
	if got := show(); got != "on" {
		t.Errorf("transaction_read_only is %q", got)
	}
	for range 500 { // some would fail if every read opened a connection
		show()
	}
	if n := pool.Stat().NewConnsCount(); n > 100 {
		t.Errorf("%d connections were made", n)
	}
	setDefault("off")
	for end := time.Now().Add(10 * time.Second); show() == "on"; {
		if time.Now().After(end) {
			t.Fatal("the session is kept")
		}
	}
}
