package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/bench/load"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// send accepts one message in a process and registers it with the sink.
func (b *notifyBench) send(ctx context.Context, p *process, text string, at time.Time) error {
	b.sink.expect(text, at)
	_, err := p.engine.Do(ctx, flow.Submission{Tenant: b.tenant, RequestID: tenantName, Rows: 4, Bytes: 512,
		Command: flow.Notify(&notify.SendCommand{Caller: b.caller(),
			Params: notify.Params{Channel: send.Webhook, Recipient: "endpoint-1", BusinessType: "order.paid",
				Content: send.Content{Type: "order.paid", Text: text}, Priority: 1}})})
	return err
}

// messageText is the text of a run's nth message, about as long as a text message.
func messageText(run string, n int) string {
	return fmt.Sprintf("%s %08d: your order has been paid, and leaves our house tomorrow. Thank you for your trust.",
		run, n)
}

// fill sends messages by many callers until stop, and returns their number.
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
				if err := b.send(ctx, p, messageText(run, int(i)), time.Time{}); err != nil {
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

// delivered waits until all expected messages have arrived, and then until the queue is empty.
func (b *notifyBench) delivered(ctx context.Context, within time.Duration) error {
	if err := b.arrive(ctx, within); err != nil {
		return err
	}
	for end := time.Now().Add(b.options.Lease + time.Minute); ; load.Pause(ctx, 5*time.Millisecond) {
		left, err := b.left(ctx)
		if err != nil || left == 0 {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%w: %d are left in the queue", errNotDelivered, left)
		}
	}
}

// arrive waits until all expected messages have arrived.
func (b *notifyBench) arrive(ctx context.Context, within time.Duration) error {
	const step = 2 * time.Millisecond
	for end := time.Now().Add(within); int(b.sink.count.Load()) < b.sink.expected(); load.Pause(ctx, step) {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(end):
			return fmt.Errorf("%w: %d of %d arrived in %v", errNotDelivered, b.sink.count.Load(),
				b.sink.expected(), within)
		}
	}
	return nil
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

// burnDown delivers enqueue's messages.
func burnDown(ctx context.Context, b *notifyBench) (r NotifyResult, err error) {
	b.sink.reset()
	for n := range b.options.Backlog {
		b.sink.expect(messageText("backlog", n+1), time.Time{})
	}
	return b.burn(ctx)
}

func (b *notifyBench) burn(ctx context.Context) (r NotifyResult, err error) {
	begin := time.Now()
	p := b.startProcess(true)
	defer p.stop()
	if err := b.delivered(ctx, 2*time.Minute); err != nil {
		return r, err
	}
	took := time.Since(begin)
	r = b.sink.result()
	r.PerSecond = float64(r.Messages) / took.Seconds()
	return r, nil
}

// now returns the name of a run, with the prefix held- while the snapshot is open.
func (b *notifyBench) now(run string) string {
	if b.snapshot != nil {
		return "held-" + run
	}
	return run
}

// laterBurnDown runs twice: without a snapshot and with one.
func laterBurnDown(ctx context.Context, b *notifyBench) (r NotifyResult, err error) {
	if _, err := b.enqueue(ctx, b.now("later-backlog")); err != nil {
		return r, err
	}
	return b.burn(ctx)
}

// steady sends and delivers in one process for as long as heldSteady does, so that both end with equally many messages.
func steady(ctx context.Context, b *notifyBench) (NotifyResult, error) {
	return b.steady(ctx, "steady")
}

func (b *notifyBench) steady(ctx context.Context, run string) (r NotifyResult, err error) {
	b.sink.reset()
	p := b.startProcess(true)
	defer p.stop()
	var stop atomic.Bool
	failed := make(chan error, 1)
	go func() {
		_, err := b.fill(ctx, p, run, func(int64) bool { return stop.Load() })
		failed <- err
	}()
	load.Pause(ctx, max(b.options.Held-b.options.Measure, b.options.Warmup))
	before, begin := b.sink.count.Load(), time.Now()
	load.Pause(ctx, b.options.Measure)
	delivered, took := b.sink.count.Load()-before, time.Since(begin)
	stop.Store(true)
	if err := <-failed; err != nil {
		return r, err
	}
	if err := b.delivered(ctx, 2*time.Minute); err != nil {
		return r, err
	}
	r = b.sink.result()
	r.PerSecond = float64(delivered) / took.Seconds()
	return r, nil
}

// heldSteady opens a snapshot, which stays open until the end of the run, and measures at the end of the hold time.
func heldSteady(ctx context.Context, b *notifyBench) (r NotifyResult, err error) {
	if b.snapshot, err = b.connect(ctx, b.name); err != nil {
		return r, err
	}
	tx, err := b.snapshot.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return r, err
	}
	if _, err := tx.Exec(ctx, sql("notify_snapshot")); err != nil {
		return r, err
	}
	r, err = b.steady(ctx, "held")
	r.Note = fmt.Sprintf("The snapshot had been open for %v.", b.options.Held)
	return r, err
}

const pickupRate = 300

// pace sends messages at a fixed rate by separate callers, like users.
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
			if err := b.send(ctx, p, messageText(run, n), time.Now()); err != nil {
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
	err = b.delivered(ctx, time.Minute)
	return b.sink.result(), err
}

// pickupOther delivers the messages in another process than the accepting one.
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

// kill runs two delivering processes on a backlog and kills one midway.
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
		load.Pause(ctx, time.Millisecond)
	}
	if err := both[0].process.Kill(); err != nil {
		return r, err
	}
	at := b.sink.count.Load()
	if err := b.delivered(ctx, b.options.Lease+2*time.Minute); err != nil {
		return r, err
	}
	r = b.sink.result()
	r.Note = fmt.Sprintf("Killed when %d had arrived.", at)
	return r, nil
}
