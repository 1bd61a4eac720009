package flow_test

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// Postgres becomes read-only for sessions that are at work, and is restarted with settings that are worse.
func TestAServerThatChangesUnderWayLosesNothing(t *testing.T) {
	t.Parallel()
	d := pgtest.NewDurable(t)
	l := newTill(t, d.DB)
	d.System(t, "default_transaction_read_only", "on")
	l.ready(false)
	l.fails("read only")
	d.System(t, "default_transaction_read_only", "")
	l.more("after read only")
	for _, settings := range []map[string]string{
		{"max_connections": "7", "superuser_reserved_connections": "1", "max_wal_senders": "0"}, // fewer than the two servers want
		{"max_connections": "50", "synchronous_commit": "off", "fsync": "off", "wal_level": "minimal", "max_locks_per_transaction": "10"},
		{"synchronous_commit": "remote_apply", "idle_session_timeout": "30", "deadlock_timeout": "1", "commit_delay": "5000", "max_prepared_transactions": "0"},
	} {
		d.RestartWith(t, settings)
		l.more("after a restart")
	}
	l.ready(true)
	l.judge()
}
