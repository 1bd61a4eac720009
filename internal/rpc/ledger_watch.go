package rpc

import (
	"context"
	"time"

	"connectrpc.com/connect"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// A watcher sends about watchEntries before its API key is checked again. While it is behind the tail, the pause
// between its reads grows from watchPauseMin to watchPauseMax if there are no new entries. After watchHeartbeat without
// an entry the stream sends the cursor alone.
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
	w, err := s.Tail.Watch(callOf(ctx).identity.Tenant, r.GetCursor(), r.GetPattern())
	if err != nil {
		return err
	}
	defer w.Close()
	for pause, lastSent := watchPauseMin, (time.Time{}); ; {
		if err := callOf(ctx).reauthenticate(ctx); err != nil {
			return err
		}
		before := w.Cursor()
		commits, changed, err := nextCommits(ctx, w)
		if err != nil {
			return err
		}
		sent, err := sendCommits(stream, commits)
		if err != nil {
			return err
		}
		if sent > 0 {
			lastSent = time.Now()
		}
		if cursor := w.Cursor(); cursor != "" && time.Since(lastSent) >= watchHeartbeat {
			if err := stream.Send(&pb.WatchEntriesResponse{Cursor: cursor}); err != nil {
				return err
			}
			lastSent = time.Now()
		}
		switch {
		case sent >= watchEntries: // more entries are waiting
			pause = 0
		case changed != nil:
			pause = watchPauseMax
		case w.Cursor() != before:
			pause = watchPauseMin
		default:
			pause = min(max(2*pause, watchPauseMin), watchPauseMax)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.Closing:
			return fault.ShuttingDown.New("the server is shutting down: reconnect and continue after the last cursor").
				After(time.Second)
		case <-changed:
		case <-time.After(pause):
		}
	}
}

// nextCommits returns the next commits from memory, and a channel that is closed when there may be others. A watcher
// that is behind reads the database, within the share of its tenant, and gets no channel. If that share is in use for
// long, it gets no commits.
func nextCommits(ctx context.Context, w *ledger.Watcher) (commits []ledger.Commit, changed <-chan struct{}, err error) {
	commits, changed, following, err := w.Follow(watchEntries)
	if err != nil || following {
		return commits, changed, err
	}
	c := callOf(ctx)
	err = c.gate.Reads.query(ctx, c.identity, func() (err error) {
		within, cancel := context.WithTimeout(ctx, maxRead)
		defer cancel()
		commits, err = w.Read(within, watchEntries)
		return err
	})
	if fault.Is(err, fault.Busy) {
		return nil, nil, nil
	}
	return commits, nil, err
}

// sendCommits sends a message for each commit. It returns the number of entries.
func sendCommits(stream *connect.ServerStream[pb.WatchEntriesResponse], commits []ledger.Commit) (sent int, err error) {
	for _, c := range commits {
		m := &pb.WatchEntriesResponse{Cursor: c.Cursor, Entries: make([]*pb.Entry, len(c.Entries))}
		for i := range c.Entries {
			m.Entries[i] = renderEntry(&c.Entries[i])
		}
		if err := stream.Send(m); err != nil {
			return sent, err
		}
		sent += len(m.Entries)
	}
	return sent, nil
}
