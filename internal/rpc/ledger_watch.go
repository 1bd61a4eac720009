package rpc

import (
	"context"
	"time"

	"connectrpc.com/connect"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// A watcher reads up to watchEntries per poll. The pause between polls grows from watchPauseMin to watchPauseMax while
// there are no new entries. After watchHeartbeat without an entry the stream sends the cursor alone.
const (
	watchEntries   = 1_000
	watchPauseMin  = 20 * time.Millisecond
	watchPauseMax  = time.Second
	watchHeartbeat = 5 * time.Second
)

// WatchEntries streams entries as they are committed, until the caller cancels, the API key is revoked, or the server
// shuts down.
func (s *Ledger) WatchEntries(ctx context.Context, r *pb.WatchEntriesRequest,
	stream *connect.ServerStream[pb.WatchEntriesResponse]) error {
	tenant, cursor, pause, lastSent := callOf(ctx).identity.Tenant, r.GetCursor(), watchPauseMin, time.Time{}
	for {
		if err := callOf(ctx).reauthenticate(ctx); err != nil {
			return err
		}
		commits, next, err := s.Reader.EntriesAfter(ctx, tenant, cursor, r.GetPattern(), watchEntries)
		if err != nil {
			return err
		}
		sent := 0
		for _, c := range commits {
			m := &pb.WatchEntriesResponse{Cursor: c.Cursor, Entries: make([]*pb.Entry, len(c.Entries))}
			for i := range c.Entries {
				m.Entries[i] = renderEntry(&c.Entries[i])
			}
			if err := stream.Send(m); err != nil {
				return err
			}
			sent, lastSent = sent+len(m.Entries), time.Now()
		}
		if time.Since(lastSent) >= watchHeartbeat {
			if err := stream.Send(&pb.WatchEntriesResponse{Cursor: next}); err != nil {
				return err
			}
			lastSent = time.Now()
		}
		switch {
		case sent >= watchEntries: // more entries are waiting
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
