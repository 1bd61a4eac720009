package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// send accepts one message in a process, and has the sink expect it.
func (b *notifyBench) send(ctx context.Context, p *process, text string, at time.Time) error {
	b.sink.expect(text, at)
	_, err := p.engine.Do(ctx, flow.Submission{Tenant: b.tenant, RequestID: tenantName, Rows: 4, Bytes: 512,
		Command: flow.Notify(&notify.SendCommand{
			Caller: commit.Caller{Tenant: b.tenant, Principal: tenantName, RequestID: tenantName},
			Params: notify.Params{Channel: send.Webhook, Recipient: "endpoint-1", BusinessType: "order.paid",
				Content:  send.Content{Type: "order.paid", Text: text},
				Priority: 1}})})
	return err
}

// say is what the nth message of a run says: about as much as a text message.
func say(run string, n int) string {
	return fmt.Sprintf("%s %08d: your order has been paid, and leaves our house tomorrow. Thank you for your trust.",
		run, n)
}

// fill sends messages by many callers, until stop says so, and tells how many.
func (b *notifyBench) fill(ctx context.Context, p *process, run string, stop func(n int64) bool) (int, error) {
	var (
		all     sync.WaitGroup
		n       atomic.Int64
		once    sync.Once
		failure error
	)
	for range b.options.Callers {
		all.Go(func() {
			for i := n.Add(1); !stop(i); i = n.Add(1) {
				if err := b.send(ctx, p, say(run, int(i)), time.Time{}); err != nil {
					once.Do(func() { failure = err })
					return
				}
			}
		})
	}
	all.Wait()
	return b.sink.expected(), errors.Join(failure, ctx.Err())
}

func upTo(most int) func(int64) bool { return func(n int64) bool { return n > int64(most) } }

// arrive waits until everything that is expected has arrived and is settled.
func (b *notifyBench) arrive(ctx context.Context, within time.Duration) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(within); ; {
		if int(b.sink.count.Load()) >= b.sink.expected() {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if time.Now().After(end) {
			return fmt.Errorf("%w: %d of %d arrived in %v", errNotDelivered, b.sink.count.Load(), b.sink.expected(),
				within)
		}
	}
}

// settled waits until the queue is empty.
func (b *notifyBench) settled(ctx context.Context) error {
	for end := time.Now().Add(b.lease() + 10*time.Second); ; pause(ctx, 5*time.Millisecond) {
		var left int
		if err := b.super.QueryRow(ctx, sql("notify_left")).Scan(&left); err != nil || left == 0 {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%w: %d are left in the queue", errNotDelivered, left)
		}
	}
}

// enqueue leaves its messages for burnDown.
func enqueue(ctx context.Context, b *notifyBench) (r NotifyResult, err error) {
	r, err = b.enqueue(ctx, "backlog")
	b.sink.reset()
	return r, err
}

func (b *notifyBench) enqueue(ctx context.Context, run string) (r NotifyResult, err error) {
	b.sink.reset()
	p := b.startProcess(false)
	defer p.stop()
	begin := time.Now()
	n, err := b.fill(ctx, p, run, upTo(b.options.Backlog))
	if err != nil {
		return r, err
	}
	return NotifyResult{PerSecond: float64(n) / time.Since(begin).Seconds(), Messages: n}, nil
}

// burnDown delivers what enqueue left.
func burnDown(ctx context.Context, b *notifyBench) (r NotifyResult, err error) {
	b.sink.reset()
	for n := range b.options.Backlog {
		b.sink.expect(say("backlog", n+1), time.Time{})
	}
	return b.burn(ctx)
}

func (b *notifyBench) burn(ctx context.Context) (r NotifyResult, err error) {
	begin := time.Now()
	p := b.startProcess(true)
	defer p.stop()
	if err := b.arrive(ctx, 2*time.Minute); err != nil {
		return r, err
	}
	if err := b.settled(ctx); err != nil {
		return r, err
	}
	took := time.Since(begin)
	r = b.sink.result()
	r.PerSecond = float64(r.Messages) / took.Seconds()
	return r, nil
}

// now names a run that there may be without a snapshot and with one.
func (b *notifyBench) now(run string) string {
	if b.snapshot != nil {
		return "held-" + run
	}
	return run
}

// laterBurnDown is run twice: without a snapshot and with one.
func laterBurnDown(ctx context.Context, b *notifyBench) (r NotifyResult, err error) {
	if _, err := b.enqueue(ctx, b.now("later-backlog")); err != nil {
		return r, err
	}
	return b.burn(ctx)
}

// steady sends and delivers in one process, for as long as heldSteady does, so that both end with as much behind them.
func steady(ctx context.Context, b *notifyBench) (NotifyResult, error) {
	return b.steadyFor(ctx, "steady", b.beforeMeasure(), b.options.Measure)
}

func (b *notifyBench) beforeMeasure() time.Duration {
	return max(b.options.Held-b.options.Measure, b.options.Warmup)
}

func (b *notifyBench) steadyFor(ctx context.Context, run string, warmup,
	measure time.Duration) (r NotifyResult, err error) {
	b.sink.reset()
	p := b.startProcess(true)
	defer p.stop()
	var stop atomic.Bool
	failed := make(chan error, 1)
	go func() {
		_, err := b.fill(ctx, p, run, func(int64) bool { return stop.Load() })
		failed <- err
	}()
	pause(ctx, warmup)
	before, begin := b.sink.count.Load(), time.Now()
	pause(ctx, measure)
	delivered, took := b.sink.count.Load()-before, time.Since(begin)
	stop.Store(true)
	if err := <-failed; err != nil {
		return r, err
	}
	if err := b.arrive(ctx, 2*time.Minute); err != nil {
		return r, err
	}
	if err := b.settled(ctx); err != nil {
		return r, err
	}
	r = b.sink.result()
	r.PerSecond = float64(delivered) / took.Seconds()
	return r, nil
}

// heldSteady opens a snapshot, which stays open to the end of the run, and measures at the end of the time.
func heldSteady(ctx context.Context, b *notifyBench) (r NotifyResult, err error) {
	if b.snapshot, err = b.cluster.connect(ctx, "bench_notify"); err != nil {
		return r, err
	}
	tx, err := b.snapshot.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return r, err
	}
	if _, err := tx.Exec(ctx, sql("notify_snapshot")); err != nil {
		return r, err
	}
	r, err = b.steadyFor(ctx, "held", b.beforeMeasure(), b.options.Measure)
	r.Note = fmt.Sprintf("The snapshot had been open for %v.", b.options.Held)
	return r, err
}

const pickupRate = 300

// pace sends so many messages a second by callers of their own, as users would.
func (b *notifyBench) pace(ctx context.Context, p *process, run string, during time.Duration) error {
	var (
		all     sync.WaitGroup
		once    sync.Once
		failure error
	)
	tick := time.NewTicker(time.Second / pickupRate)
	defer tick.Stop()
	for n := range int(during.Seconds() * pickupRate) {
		<-tick.C
		all.Go(func() {
			if err := b.send(ctx, p, say(run, n), time.Now()); err != nil {
				once.Do(func() { failure = err })
			}
		})
	}
	all.Wait()
	return failure
}

func pickup(ctx context.Context, b *notifyBench) (r NotifyResult, err error) {
	p := b.startProcess(true)
	defer p.stop()
	return b.pickup(ctx, p, "pickup")
}

func (b *notifyBench) pickup(ctx context.Context, p *process, run string) (r NotifyResult, err error) {
	b.sink.reset()
	b.sent++
	run = fmt.Sprint(run, b.sent)
	if err := b.pace(ctx, p, run+"-warm-up", b.options.Warmup); err != nil {
		return r, err
	}
	if err := b.arrive(ctx, time.Minute); err != nil {
		return r, err
	}
	b.sink.reset()
	if err := b.pace(ctx, p, run, b.options.Measure); err != nil {
		return r, err
	}
	if err := b.arrive(ctx, time.Minute); err != nil {
		return r, err
	}
	return b.sink.result(), b.settled(ctx)
}

// pickupOther has the messages delivered by another process than the one that accepts them.
func pickupOther(ctx context.Context, b *notifyBench) (r NotifyResult, err error) {
	p := b.startProcess(false)
	defer p.stop()
	c, err := b.startDeliverer()
	if err != nil {
		return r, err
	}
	defer c.stop(stopPatience)
	return b.pickup(ctx, p, "pickup-other")
}

// kill has two processes deliver a backlog, and kills one in the middle.
func kill(ctx context.Context, b *notifyBench) (r NotifyResult, err error) {
	if _, err := b.enqueue(ctx, b.now("kill")); err != nil {
		return r, err
	}
	var both [2]*child
	for i := range both {
		if both[i], err = b.startDeliverer(); err != nil {
			return r, err
		}
		defer both[i].stop(stopPatience)
	}
	for int(b.sink.count.Load()) < b.options.Backlog/4 && ctx.Err() == nil {
		pause(ctx, time.Millisecond)
	}
	if err := both[0].process.Kill(); err != nil {
		return r, err
	}
	at := b.sink.count.Load()
	if err := b.arrive(ctx, b.lease()+2*time.Minute); err != nil {
		return r, err
	}
	if err := b.settled(ctx); err != nil {
		return r, err
	}
	r = b.sink.result()
	r.Note = fmt.Sprintf("Killed when %d had arrived.", at)
	return r, nil
}
