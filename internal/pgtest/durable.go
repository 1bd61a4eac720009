package pgtest

import (
	"context"
	"testing"

	"github.com/ledgerd/ledgerd/internal/localpg"
)

// Durable is a database on its own server with production durability, so that a test may kill the server:
// d.Server.Kill(), then d.Restart.
type Durable struct {
	*DB
	// Server is the current server; Restart replaces it.
	Server *localpg.Server

	opts localpg.Options
}

// NewDurable starts the server. If the server is down at the end of the test it is restarted for the checks, so
// every crash test also tests recovery.
func NewDurable(t testing.TB) *Durable {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// Setup runs without fsync, which would take seconds: a test kills processes, not the machine.
	srv, err := StartServer(ctx, localpg.Options{Log: t.Output()})
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	d := &Durable{Server: srv, opts: localpg.Options{Dir: srv.Dir(), Durable: true, Log: t.Output()}}
	d.stopAtEnd(t)
	d.DB = newCluster(srv).newDB(t)
	d.Restart(t)
	t.Cleanup(func() { d.restartEnded(t) })
	return d
}

func (d *Durable) stopAtEnd(t testing.TB) {
	t.Cleanup(func() {
		if err := StopServer(d.Server); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
}

// restartEnded restarts the server if it has ended.
func (d *Durable) restartEnded(t testing.TB) {
	t.Helper()
	select {
	case <-d.Server.Done():
		d.Restart(t)
	default:
	}
}

// Restart starts a server on the existing data, after stopping the current one if it runs. The DSNs stay valid.
func (d *Durable) Restart(t testing.TB) {
	t.Helper()
	_ = d.Server.Stop() // the error reports the crash that the test caused
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	srv, err := localpg.Start(ctx, d.opts)
	if err != nil {
		t.Fatalf("pgtest: restart the server: %v", err)
	}
	d.Server = srv
}
