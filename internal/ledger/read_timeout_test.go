package ledger

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// The pool has no timeout of its own, as behind a pooler.
func TestReadsOfSeveralRowsHaveATimeoutInTheDatabase(t *testing.T) {
	t.Parallel()
	r, limit := NewReader(pgtest.Pool(t, pgtest.New(t).AllDSN)), ""
	if err := pg.Snapshot(t.Context(), r.pool, func(d pg.DB) error {
		return d.QueryRow(t.Context(), "show statement_timeout").Scan(&limit)
	}); err != nil || limit != "65s" {
		t.Errorf("%q, %v", limit, err)
	}
}
