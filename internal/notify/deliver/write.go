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
	"github.com/ledgerd/ledgerd/internal/pg"
)

// writer writes results. Results that arrive during one commit form the next batch. During an outage of the database
// results stay in memory and keep their room, so the pool takes no more messages than it can record.
type writer struct {
	pool *Pool

	mu      sync.Mutex
	results []*result
	closed  bool
	some    *sync.Cond
	// ctx ends when the time for last writes is over.
	ctx    context.Context
	cancel context.CancelFunc
}

const maxWritten = 1000

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

// close ends run when all results are written, or after the given time.
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
		batch := slices.Clone(w.results[:min(len(w.results), maxWritten)])
		w.results = slices.Delete(w.results, 0, len(batch))
		w.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		w.write(slices.DeleteFunc(slices.Clone(batch), func(r *result) bool { return r.lost }))
		w.pool.releaseAll(batch)
	}
}

// write writes a batch, and retries until it succeeds or ctx ends. If the database rejects the data of a result,
// bisection finds it.
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
			r.retried = true
		}
		select {
		case <-w.ctx.Done():
			w.pool.Log.Error("the results of messages were not written; another process will finish the messages",
				"messages", len(batch))
			return
		case <-time.After(pause):
		}
	}
}

// isData reports whether an error is caused by the data, so that a retry cannot succeed.
func isData(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && (e.Code[:2] == "22" || e.Code[:2] == "23" || e.Code == "54000")
}

// writeBare writes a result without the provider's texts, which the database rejected.
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
		w.pool.Log.Error("a message could not be finished: it stays leased until the lease expires", "tenant_id",
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
		gone []int32
		left []db.FailedUpdateRow
		all  []func(db.DBTX) error
	)
	if len(sent) > 0 {
		arg := sentParams(sent, w.pool.Instance)
		rows := db.SentDeleteParams{Tenants: arg.Tenants, MessageIds: arg.MessageIds, Fences: arg.Fences}
		all = append(all, func(d db.DBTX) error { return q.SentEventInsert(ctx, d, arg) },
			func(d db.DBTX) (err error) { gone, err = q.SentDelete(ctx, d, rows); return err })
	}
	if len(others) > 0 {
		arg := failedParams(others, w.pool.Instance)
		rows := db.FailedUpdateParams{Tenants: arg.Tenants, MessageIds: arg.MessageIds, Fences: arg.Fences,
			States: arg.States, Kinds: arg.Kinds, WaitUs: arg.WaitUs, Providers: arg.Providers, Unsure: arg.Unsure,
			FailureCodes: arg.FailureCodes}
		all = append(all, func(d db.DBTX) error { return q.FailedEventInsert(ctx, d, arg) },
			func(d db.DBTX) (err error) { left, err = q.FailedUpdate(ctx, d, rows); return err })
	}
	for _, arg := range forgettable(batch) {
		all = append(all, func(d db.DBTX) error { return q.ContentsForget(ctx, d, arg) })
	}
	began := time.Now()
	if _, err := w.pool.transact(pg.ForTenants(ctx, tenantsOf(batch)...), all...); err != nil {
		return err
	}
	w.pool.Metrics.wrote(len(batch), time.Since(began))
	written := make(map[*result]bool, len(batch))
	for _, n := range gone {
		written[sent[n-1]] = true
	}
	for _, row := range left {
		r := others[row.N-1]
		written[r] = true
		w.pool.afterWrite(r, row.State)
	}
	w.settleLost(ctx, batch, written)
	return nil
}

// settleLost handles results whose messages another process has taken over. If such a message was sent, and the other
// process has only leased it or settled it as unknown, it becomes sent.
func (w *writer) settleLost(ctx context.Context, batch []*result, written map[*result]bool) {
	var sent []*result
	for _, r := range batch {
		if written[r] {
			continue
		}
		if !r.retried { // otherwise the earlier write may have committed
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
	arg := db.LateEventInsertParams(sentParams(sent, w.pool.Instance))
	rows := db.LateDeleteParams{Tenants: arg.Tenants, MessageIds: arg.MessageIds, Fences: arg.Fences}
	if _, err := w.pool.transact(pg.ForTenants(ctx, arg.Tenants...),
		func(d db.DBTX) error { return q.LateEventInsert(ctx, d, arg) },
		func(d db.DBTX) error { return q.LateDelete(ctx, d, rows) }); err != nil {
		w.pool.Log.Warn("could not record that messages were sent: their state is unchanged",
			"messages", len(sent), "error", err)
	}
}

func tenantsOf(batch []*result) (tenants []int32) {
	for _, r := range batch {
		tenants = append(tenants, r.job.Tenant)
	}
	return tenants
}

// split separates sent messages from others.
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

func sentParams(batch []*result, instance string) (arg db.SentEventInsertParams) {
	arg.Instance = instance
	for _, r := range batch {
		arg.Tenants, arg.MessageIds, arg.Fences = append(arg.Tenants, r.job.Tenant), append(arg.MessageIds, r.job.ID),
			append(arg.Fences, r.job.Fence)
		arg.Providers = append(arg.Providers, printable(r.provider, 64))
		arg.ProviderMessageIds = append(arg.ProviderMessageIds, printable(r.providerMessageID, 256))
	}
	return arg
}

func failedParams(batch []*result, instance string) (arg db.FailedEventInsertParams) {
	arg.Instance = instance
	for _, r := range batch {
		arg.Tenants, arg.MessageIds, arg.Fences = append(arg.Tenants, r.job.Tenant), append(arg.MessageIds, r.job.ID),
			append(arg.Fences, r.job.Fence)
		arg.States, arg.Kinds, arg.WaitUs = append(arg.States, r.state), append(arg.Kinds, r.kind),
			append(arg.WaitUs, r.wait.Microseconds())
		arg.Providers, arg.Unsure = append(arg.Providers, printable(r.provider, 64)), append(arg.Unsure, r.unsure)
		arg.ProviderMessageIds = append(arg.ProviderMessageIds, printable(r.providerMessageID, 256))
		arg.FailureCodes = append(arg.FailureCodes, printable(r.code, 64))
		arg.FailureTexts = append(arg.FailureTexts, printable(r.text, 2048))
	}
	return arg
}

// forgettable returns the messages whose content is of no use after they are settled, by partition of contents.
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

// printable truncates a text to most bytes, and removes or replaces characters that Postgres cannot store.
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
