package deliver

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// hints notify other processes of tenants with unleased messages, and receive such notifications. A lost hint only
// costs time: polling finds the messages.
type hints struct {
	pool *Pool

	mu      sync.Mutex
	tenants map[int32]struct{}
	some    chan struct{}
}

func newHints(p *Pool) *hints {
	return &hints{pool: p, tenants: make(map[int32]struct{}), some: make(chan struct{}, 1)}
}

const (
	// hintPause is the minimum time between notifications, because each takes a database-wide lock at commit.
	hintPause = 250 * time.Millisecond
	// maxHints fit into the 8,000 bytes of a payload.
	maxHints = 300
)

func (h *hints) add(tenant int32) {
	h.mu.Lock()
	h.tenants[tenant] = struct{}{}
	h.mu.Unlock()
	select {
	case h.some <- struct{}{}:
	default:
	}
}

func (h *hints) take() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var texts []string
	for t := range h.tenants {
		if len(texts) == maxHints {
			break
		}
		texts = append(texts, strconv.FormatInt(int64(t), 36))
		delete(h.tenants, t)
	}
	return strings.Join(texts, " ")
}

// run sends hints until ctx ends.
func (h *hints) run(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-h.some:
		}
		for text := h.take(); text != ""; text = h.take() {
			h.send(ctx, text)
			select {
			case <-ctx.Done():
			case <-time.After(hintPause):
			}
		}
	}
}

// flush sends the remaining hints at shutdown.
func (h *hints) flush() {
	for text := h.take(); text != ""; text = h.take() {
		h.send(context.Background(), text)
	}
}

func (h *hints) send(ctx context.Context, text string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := q.Hint(ctx, h.pool.DB, text); err != nil {
		h.pool.Log.Debug("could not notify other servers; they find the message by polling", "error", err)
	}
}

// listen receives hints over its own connection. It receives nothing behind a pooler that does not forward
// notifications.
func (h *hints) listen(ctx context.Context) {
	for ctx.Err() == nil {
		err := h.listenOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		h.pool.Log.Debug("the connection for notifications ended", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second + rand.N(2*time.Second)):
		}
	}
}

func (h *hints) listenOnce(ctx context.Context) error {
	conn, err := pgx.ConnectConfig(ctx, h.pool.DB.Config().ConnConfig)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(closing)
	}()
	if _, err := conn.Exec(ctx, "listen ledgerd_notify"); err != nil {
		return err
	}
	h.pool.poll.discoverNow() // hints sent before LISTEN were missed
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		for _, text := range strings.Fields(n.Payload) {
			if t, err := strconv.ParseInt(text, 36, 32); err == nil {
				h.pool.poll.wake(int32(t))
			}
		}
	}
}
