package rpc

import (
	"context"
	"time"

	"connectrpc.com/connect"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// How many entries a watcher gets from one look, and how long it waits for the next when there was
// nothing new; and how often it hears its cursor when nothing is for it.
const (
	watchEntries  = 1_000
	watchPauseMin = 20 * time.Millisecond
	watchPauseMax = time.Second
	watchSilence  = 5 * time.Second
)

// WatchEntries sends entries as they are committed, until the caller leaves, his key is revoked, or the
// server ends.
func (s *Ledger) WatchEntries(ctx context.Context, r *ledgerv1.WatchEntriesRequest,
	stream *connect.ServerStream[ledgerv1.WatchEntriesResponse]) error {
	tenant, cursor, pause, spoke := callOf(ctx).identity.Tenant, r.GetCursor(), watchPauseMin, time.Time{}
	for {
		if err := callOf(ctx).stillIn(ctx); err != nil {
			return err
		}
		commits, next, err := s.Reader.EntriesAfter(ctx, tenant, cursor, r.GetPattern(), watchEntries)
		if err != nil {
			return err
		}
		sent := 0
		for _, c := range commits {
			m := &ledgerv1.WatchEntriesResponse{Cursor: c.Cursor, Entries: make([]*ledgerv1.Entry, len(c.Entries))}
			for i := range c.Entries {
				m.Entries[i] = renderEntry(&c.Entries[i])
			}
			if err := stream.Send(m); err != nil {
				return err
			}
			sent, spoke = sent+len(m.Entries), time.Now()
		}
		if time.Since(spoke) >= watchSilence {
			if err := stream.Send(&ledgerv1.WatchEntriesResponse{Cursor: next}); err != nil {
				return err
			}
			spoke = time.Now()
		}
		switch {
		case sent >= watchEntries: // there is more
			pause = 0
		case next != cursor:
			pause = watchPauseMin
		default:
			pause = min(max(2*pause, watchPauseMin), watchPauseMax)
		}
		cursor = next
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.Closing:
			return fault.ShuttingDown.New("the server is shutting down: reconnect and continue after the last cursor").After(time.Second)
		case <-time.After(pause):
		}
	}
}
