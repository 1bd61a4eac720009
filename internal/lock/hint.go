package lock

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// maxHints is the maximum number of tickets in one notification, whose payload must stay below 8,000 bytes.
const maxHints = 300

// sendHints notifies other processes. Hints that arrive during a send are sent together.
func (w *WaitQueue) sendHints(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.hintReady:
		}
		for {
			text := w.takeHints()
			if text == "" {
				break
			}
			hintCtx, cancel := context.WithTimeout(ctx, time.Second)
			if err := q.Hint(hintCtx, w.Reads, text); err != nil && ctx.Err() == nil {
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

// listen receives hints from other processes on a dedicated connection. Behind a pooler that does not forward
// notifications it receives none.
func (w *WaitQueue) listen(ctx context.Context) {
	for ctx.Err() == nil {
		err := w.listenOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		w.Log.Debug("the LISTEN connection ended; reconnecting", "error", err)
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
	if _, err := conn.Exec(ctx, "listen ledgerd_lock"); err != nil {
		return err
	}
	w.poll() // notifications sent before LISTEN were missed
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
