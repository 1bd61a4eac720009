package lock

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// maxHints go in one notification, whose payload has less than 8,000 bytes.
const maxHints = 300

// tell sends hints to other processes. What gathers while one is on its way goes together.
func (w *WaitQueue) tell(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.tells:
		}
		for {
			text := w.takeHints()
			if text == "" {
				break
			}
			hintCtx, cancel := context.WithTimeout(ctx, time.Second)
			if err := q.Hint(hintCtx, w.Reads, text); err != nil && ctx.Err() == nil {
				// looking finds it
				w.Log.Debug("could not notify other servers; they find the change by polling", "error", err)
			}
			cancel()
		}
	}
}

func (w *WaitQueue) takeHints() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := min(len(w.hints), maxHints)
	texts := make([]string, n)
	for i, t := range w.hints[:n] {
		texts[i] = strconv.FormatInt(t, 36)
	}
	w.hints = append(w.hints[:0], w.hints[n:]...)
	return strings.Join(texts, " ")
}

// listen takes hints from other processes, over a connection of its own. Behind a pooler that does not
// pass notifications on it hears nothing.
func (w *WaitQueue) listen(ctx context.Context) {
	for ctx.Err() == nil {
		err := w.listenOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		w.Log.Debug("the connection for notifications ended", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second + rand.N(2*time.Second)):
		}
	}
}

func (w *WaitQueue) listenOnce(ctx context.Context) error {
	conn, err := pgx.ConnectConfig(ctx, w.Reads.Config().ConnConfig)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(closing)
	}()
	if _, err := conn.Exec(ctx, "listen ledgerd_lease"); err != nil {
		return err
	}
	w.look() // what was told meanwhile was not heard
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		for _, text := range strings.Fields(n.Payload) {
			if t, err := strconv.ParseInt(text, 36, 64); err == nil {
				w.wakeHere(t)
			}
		}
	}
}
