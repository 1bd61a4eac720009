package flow_test

import (
	"context"
	"testing"

	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// Postgres becomes read-only for running sessions, and is restarted with restrictive settings.
func TestServerRestartsLoseNothing(t *testing.T) {
	t.Parallel()
	d := pgtest.NewDurable(t)
	l := newTransferLoad(t, d.DB)
	d.System(t, "default_transaction_read_only", "on")
	l.ready(false)
	l.fails("read only")
	d.System(t, "default_transaction_read_only", "")
	l.more("after read only")
	for _, settings := range []map[string]string{
		// Fewer connections than the two servers use.
		{"max_connections": "7", "superuser_reserved_connections": "1", "max_wal_senders": "0"},
		{"max_connections": "50", "synchronous_commit": "off", "fsync": "off", "wal_level": "minimal",
			"max_locks_per_transaction": "10"},
		{"synchronous_commit": "remote_apply", "idle_session_timeout": "30", "deadlock_timeout": "1",
			"commit_delay": "5000", "max_prepared_transactions": "0"},
	} {
		d.RestartWith(t, settings)
		l.more("after a restart")
	}
	d.RestartWith(t, map[string]string{"idle_session_timeout": "0"}) // the session of judge may be idle
	l.ready(true)
	l.judge()
}

// The disk of pg_wal is full: Postgres terminates all sessions, and recovers only when there is room.
func TestFullWALDiskLosesNothing(t *testing.T) {
	t.Parallel()
	d := pgtest.NewDurable(t)
	disk := d.WALDisk(t, 128)
	l := newTransferLoad(t, d.DB)
	super := pgtest.Pool(t, d.SuperDSN)
	before := l.count(true)
	disk.Fill()
	l.until("calls fail", func() bool {
		_, _ = super.Exec(context.Background(), "select pg_switch_wal()") // forces a new segment
		return l.count(true) >= before+8
	})
	l.ready(false)
	disk.Free()
	l.more("there is room")
	l.ready(true)
	l.judge()
}
