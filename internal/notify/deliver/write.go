package deliver

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ledgerd/ledgerd/internal/notify/deliver/internal/db"
)

// writer writes results. What gathers while one batch commits is the next one. While the database is away results
// stay, and with them their room, so that the pool takes no more than it can write.
type writer struct {
	pool *Pool

	mu      sync.Mutex
	results []*result
	closed  bool
	some    *sync.Cond
	// ctx ends when there is no time left for writing.
	ctx    context.Context
	cancel context.CancelFunc
}

const mostWritten = 1000

func newWriter(p *Pool) *writer {
	w := &writer{pool: p}
	w.some = sync.NewCond(&w.mu)
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w
}

func (w *writer) put(r *result) {
	w.mu.Lock()
	w.results = append(w.results, r)
	w.some.Signal()
	w.mu.Unlock()
}

// close ends run when all is written, or after the time given.
func (w *writer) close(within time.Duration) {
	w.mu.Lock()
	w.closed = true
	w.some.Signal()
	w.mu.Unlock()
	time.AfterFunc(within, w.cancel)
}

func (w *writer) run() {
	defer w.cancel()
	for {
		w.mu.Lock()
		for len(w.results) == 0 && !w.closed {
			w.some.Wait()
		}
		batch := slices.Clone(w.results[:min(len(w.results), mostWritten)])
		w.results = slices.Delete(w.results, 0, len(batch))
		w.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		w.write(slices.DeleteFunc(slices.Clone(batch), func(r *result) bool { return r.none }))
		w.pool.left(batch)
	}
}

// write writes a batch, however long it takes. A result that the database does not take is searched for by halves.
func (w *writer) write(batch []*result) {
	for pause := 20 * time.Millisecond; len(batch) > 0; pause = min(2*pause, time.Second) {
		err := w.once(batch)
		switch {
		case err == nil:
			return
		case isData(err) && len(batch) > 1:
			w.write(batch[:len(batch)/2])
			w.write(batch[len(batch)/2:])
			return
		case isData(err):
			w.writeBare(batch[0], err)
			return
		}
		w.pool.Metrics.writeFailed()
		w.pool.Log.Warn("could not write the results of messages", "messages", len(batch), "error", err)
		for _, r := range batch {
			r.again = true
		}
		select {
		case <-w.ctx.Done():
			w.pool.Log.Error("the results of messages were not written; another process will settle the messages",
				"messages", len(batch))
			return
		case <-time.After(pause):
		}
	}
}

// isData tells whether the database refuses what is to be written, and not the moment.
func isData(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && (e.Code[:2] == "22" || e.Code[:2] == "23" || e.Code == "54000")
}

// writeBare writes a result without the provider's texts, which the database did not take.
func (w *writer) writeBare(r *result, err error) {
	j := r.job
	w.pool.Log.Error("the database rejected the response of a provider", "tenant_id", j.Tenant, "message_id", j.ID,
		"error", err)
	bare := *r
	bare.provider, bare.providerMessageID, bare.text = "", "", ""
	if bare.code != "" {
		bare.code = "unprintable"
	}
	if err := w.once([]*result{&bare}); err != nil {
		w.pool.Log.Error("a message could not be settled: it stays leased until the lease lapses", "tenant_id",
			j.Tenant, "message_id", j.ID, "error", err)
	}
}

// once writes a batch in one transaction.
func (w *writer) once(batch []*result) error {
	slices.SortFunc(batch, func(a, b *result) int { return a.job.compare(b.job) })
	sent, others := split(batch)
	ctx, cancel := context.WithTimeout(w.ctx, 25*time.Second)
	defer cancel()
	var (
		gone []db.SentFinishRow
		left []db.FailedFinishRow
		all  []func(db.DBTX) error
	)
	if len(sent) > 0 {
		arg := sentParams(sent, w.pool.Instance)
		all = append(all, func(d db.DBTX) (err error) { gone, err = q.SentFinish(ctx, d, arg); return err })
	}
	if len(others) > 0 {
		arg := failedParams(others, w.pool.Instance)
		all = append(all, func(d db.DBTX) (err error) { left, err = q.FailedFinish(ctx, d, arg); return err })
	}
	for _, arg := range forgettable(batch) {
		all = append(all, func(d db.DBTX) error { return q.ContentsForget(ctx, d, arg) })
	}
	began := time.Now()
	if _, err := w.pool.steered(ctx, all...); err != nil {
		return err
	}
	w.pool.Metrics.wrote(len(batch), time.Since(began))
	written := make(map[*result]bool, len(batch))
	for _, row := range gone {
		written[sent[row.N-1]] = true
	}
	for _, row := range left {
		r := others[row.N-1]
		written[r] = true
		w.pool.settled(r, row.State)
	}
	w.lost(ctx, batch, written)
	return nil
}

// lost looks after results whose messages others have taken meanwhile. Of those that were sent others may have found
// that nobody knew: this process does.
func (w *writer) lost(ctx context.Context, batch []*result, written map[*result]bool) {
	var sent []*result
	for _, r := range batch {
		if written[r] {
			continue
		}
		if !r.again { // else it was written before, as far as anybody knows
			w.pool.Metrics.lost("finish")
			w.pool.Log.Warn("a message was taken over by another process before its result was written", "tenant_id",
				r.job.Tenant,
				"message_id", r.job.ID, "sent", r.sent)
		}
		if r.sent && r.job.Park {
			sent = append(sent, r)
		}
	}
	if len(sent) == 0 {
		return
	}
	arg := db.SentSettleParams(sentParams(sent, w.pool.Instance))
	if _, err := w.pool.steered(ctx, func(d db.DBTX) error {
		_,
			err := q.SentSettle(ctx, d, arg)
		return err
	}); err != nil {
		w.pool.Log.Warn("could not settle messages that were sent: they stay unknown", "messages", len(sent), "error",
			err)
	}
}

// split parts those that were sent from the others.
func split(batch []*result) (sent, others []*result) {
	for _, r := range batch {
		if r.sent {
			sent = append(sent, r)
		} else {
			others = append(others, r)
		}
	}
	return sent, others
}

func sentParams(batch []*result, instance string) (arg db.SentFinishParams) {
	arg.Instance = instance
	for _, r := range batch {
		arg.Tenants, arg.MessageIds, arg.Fences = append(arg.Tenants, r.job.Tenant), append(arg.MessageIds, r.job.ID),
			append(arg.Fences, r.job.Fence)
		arg.Providers = append(arg.Providers, printable(r.provider, 64))
		arg.ProviderMessageIds = append(arg.ProviderMessageIds, printable(r.providerMessageID, 256))
	}
	return arg
}

func failedParams(batch []*result, instance string) (arg db.FailedFinishParams) {
	arg.Instance = instance
	for _, r := range batch {
		arg.Tenants, arg.MessageIds, arg.Fences = append(arg.Tenants, r.job.Tenant), append(arg.MessageIds, r.job.ID),
			append(arg.Fences, r.job.Fence)
		arg.States, arg.Kinds, arg.WaitUs = append(arg.States, r.state), append(arg.Kinds, r.kind),
			append(arg.WaitUs, r.wait.Microseconds())
		arg.Providers, arg.Unsure = append(arg.Providers, printable(r.provider, 64)), append(arg.Unsure, r.unsure)
		arg.ProviderMessageIds = append(arg.ProviderMessageIds, printable(r.providerMessageID, 256))
		arg.Codes, arg.Errors = append(arg.Codes, printable(r.code, 64)), append(arg.Errors, printable(r.text, 2048))
	}
	return arg
}

// forgettable are the messages that are of no use when they are over, by the days of their contents.
func forgettable(batch []*result) map[time.Time]db.ContentsForgetParams {
	days := map[time.Time]db.ContentsForgetParams{}
	for _, r := range batch {
		if !r.job.Never {
			continue
		}
		arg := days[r.job.ContentsUntil]
		arg.ContentsUntil = pgtype.Date{Time: r.job.ContentsUntil, Valid: true}
		arg.Tenants, arg.MessageIds = append(arg.Tenants, r.job.Tenant), append(arg.MessageIds, r.job.ID)
		days[r.job.ContentsUntil] = arg
	}
	return days
}

// printable cuts a text to so many bytes, and leaves out what Postgres does not take.
func printable(s string, most int) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "")
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}
