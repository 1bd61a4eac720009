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
func (r *Room) tell(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.tells:
		}
		for {
			text := r.takeHints()
			if text == "" {
				break
			}
			hintCtx, cancel := context.WithTimeout(ctx, time.Second)
			if err := q.Hint(hintCtx, r.Reads, text); err != nil && ctx.Err() == nil {
				r.Log.Debug("a hint was lost", "error", err) // looking finds it
			}
			cancel()
		}
	}
}

func (r *Room) takeHints() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := min(len(r.hints), maxHints)
	texts := make([]string, n)
	for i, t := range r.hints[:n] {
		texts[i] = strconv.FormatInt(t, 36)
	}
	r.hints = append(r.hints[:0], r.hints[n:]...)
	return strings.Join(texts, " ")
}

// listen takes hints from other processes, over a connection of its own. Behind a pooler that does not
// pass notifications on it hears nothing.
func (r *Room) listen(ctx context.Context) {
	for ctx.Err() == nil {
		err := r.listenOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		r.Log.Debug("listening for hints ended", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second + rand.N(2*time.Second)):
		}
	}
}

func (r *Room) listenOnce(ctx context.Context) error {
	conn, err := pgx.ConnectConfig(ctx, r.Reads.Config().ConnConfig)
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
	r.look() // what was told meanwhile was not heard
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		for _, text := range strings.Fields(n.Payload) {
			if t, err := strconv.ParseInt(text, 36, 64); err == nil {
				r.wakeHere(t)
			}
		}
	}
}
