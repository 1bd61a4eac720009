package pgtest

import (
	"context"
	"testing"

	"github.com/ledgerd/ledgerd/internal/localpg"
)

// Durable is a database on a server of its own, which waits for the disk as in
// production, so that a test may kill it: d.Server.Kill(), then d.Restart.
type Durable struct {
	*DB
	// Server is the one running now; Restart replaces it.
	Server *localpg.Server

	opts localpg.Options
}

// NewDurable starts the server. It is restarted for the checks at the end of
// the test if it does not run then, so every crash test tests the recovery too.
func NewDurable(t testing.TB) *Durable {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// Preparing does not wait for the disk, which takes seconds: a test can kill
	// processes, not the machine.
	srv, err := StartServer(ctx, localpg.Options{Log: t.Output()})
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	d := &Durable{Server: srv, opts: localpg.Options{Dir: srv.Dir(), Durable: true, Log: t.Output()}}
	t.Cleanup(func() {
		if err := StopServer(d.Server); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	c := &cluster{dsn: srv.DSN(localpg.Superuser, "postgres"), server: srv}
	d.DB = c.newDB(t)
	d.Restart(t)
	t.Cleanup(func() {
		select {
		case <-d.Server.Done():
			d.Restart(t)
		default:
		}
	})
	return d
}

// Restart starts the server anew on what the last one left, and stops that one
// first if it still runs. The DSNs stay valid.
func (d *Durable) Restart(t testing.TB) {
	t.Helper()
	_ = d.Server.Stop() // an error tells of a crash, which is why we are here
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	srv, err := localpg.Start(ctx, d.opts)
	if err != nil {
		t.Fatalf("pgtest: restart the server: %v", err)
	}
	d.Server = srv
}
