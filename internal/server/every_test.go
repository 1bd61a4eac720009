package server

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// A background task hangs, such as on a silent connection. It ends after a minute, and runs again.
func TestATaskThatHangsRunsAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &Server{log: slog.New(slog.DiscardHandler)}
		ctx, stop := context.WithCancel(t.Context())
		runs := 0
		s.every(ctx, time.Second, "hang", func(ctx context.Context) error {
			<-ctx.Done()
			runs++
			return ctx.Err()
		})
		<-time.After(5 * time.Minute)
		stop()
		s.work.Wait()
		if runs < 4 {
			t.Errorf("%d runs", runs)
		}
	})
}
