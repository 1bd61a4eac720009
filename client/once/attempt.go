package once

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ledgerd/ledgerd/client"
	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
)

// ErrLeaseLost is the cause with which a handler's context ends when its lease could not be renewed:
// another attempt may begin soon.
var ErrLeaseLost = errors.New("once: the lease on the work is lost")

// Attempt is one run of a handler.
type Attempt struct {
	// Fence names it: greater than that of every attempt before. Pass it on to what the handler writes to.
	Fence int64
	// Number is how often the work was begun, from 1.
	Number int
	// TookOver: the attempt before was cut off, and may have done some of the work. Only WithRerun.
	TookOver bool
}

type attemptContext struct{}

// AttemptOf is the attempt that a handler runs in; ok is false when the request is not guarded.
func AttemptOf(ctx context.Context) (a Attempt, ok bool) {
	if r, ok := ctx.Value(attemptContext{}).(*run); ok {
		return Attempt{Fence: r.work.GetFence(), Number: int(r.work.GetAttempt()), TookOver: r.work.GetTookOver()}, true
	}
	return a, false
}

// Unknown says that the handler cannot know whether it has done its work: whatever it answers, the work is
// parked with that answer, and nobody runs it until it is settled by ResolveRecord.
func Unknown(ctx context.Context) {
	if r, ok := ctx.Value(attemptContext{}).(*run); ok {
		r.unknown.Store(true)
	}
}

// run is an attempt at work.
type run struct {
	*Guard
	key     string
	work    *idempotencyv1.WorkRun
	unknown atomic.Bool
	ctx     context.Context // of the handler
	lose    context.CancelCauseFunc
	expiry  *time.Timer // loses the lease
	ended   chan struct{}
}

// begin asks for the right to run. Exactly one of its results is there.
func (g *Guard) begin(ctx context.Context, key string, fingerprint []byte) (*run, *idempotencyv1.BeginResponse, error) {
	sent, once := time.Now(), client.NewKey()
	req := &idempotencyv1.BeginRequest{Scope: g.scope, Key: key, Fingerprint: fingerprint,
		Lease: durationpb.New(g.settings.lease), Life: durationpb.New(g.settings.life),
		Wait:       durationpb.New(g.settings.wait),
		ParkLapsed: !g.settings.rerun}
	res, err := g.ask(ctx, req, once)
	if err != nil && !final(err) {
		g.disown(ctx, req, once)
	}
	if err != nil || res.GetRun() == nil {
		return nil, res, err
	}
	// What a handler began is finished though its caller hangs up: he may come back for the answer.
	r := &run{Guard: g, key: key, work: res.GetRun(), ended: make(chan struct{})}
	r.ctx, r.lose = context.WithCancelCause(context.WithValue(context.WithoutCancel(ctx), attemptContext{}, r))
	if time.Since(sent) > g.settings.lease/3 { // it waited: when the lease began is not known
		sent = time.Now()
		if err := r.extend(); err != nil {
			_ = r.settle(Free, nil, endTimeout)
			return nil, nil, err
		}
	}
	r.expiry = time.AfterFunc(r.left(sent), func() { r.lose(ErrLeaseLost) })
	go r.keep()
	return r, nil, nil
}

// ask begins, and hears the answer also when the caller has gone: else the work would be held by nobody.
func (g *Guard) ask(ctx context.Context, req *idempotencyv1.BeginRequest,
	once string) (*idempotencyv1.BeginResponse, error) {
	ctx, cancel := context.WithTimeout(client.WithKey(context.WithoutCancel(ctx), once), g.settings.wait+endTimeout)
	defer cancel()
	return g.works.Begin(ctx, req)
}

// disown gives up what a Begin whose answer was lost may have got: otherwise it would be parked when its
// lease runs out, though nobody began it. The same request key finds it.
func (g *Guard) disown(ctx context.Context, req *idempotencyv1.BeginRequest, once string) {
	g.late.Add(1)
	go func() {
		defer g.late.Done()
		for begun := time.Now(); time.Since(begun) < g.settings.lease; {
			wait := time.NewTimer(latePause)
			<-wait.C
			res, err := g.ask(ctx, req, once)
			if err == nil && res.GetRun() != nil {
				r := &run{Guard: g, key: req.GetKey(), work: res.GetRun(), ctx: ctx}
				err = r.settle(Free, nil, endTimeout)
			}
			if err == nil || final(err) {
				return
			}
		}
	}()
}

// left is how long a lease is good for that was asked for at a time, with a tenth to spare.
func (r *run) left(sent time.Time) time.Duration {
	return time.Until(sent.Add(r.settings.lease - r.settings.lease/10))
}

// keep renews the lease until the attempt has ended.
func (r *run) keep() {
	pause := time.NewTicker(r.settings.lease / 3)
	defer pause.Stop()
	for {
		select {
		case <-r.ended:
			return
		case <-pause.C:
		}
		sent := time.Now()
		err := r.extend()
		switch {
		case err == nil:
			if r.ctx.Err() == nil {
				r.expiry.Reset(r.left(sent))
			}
		case errors.Is(err, client.ReasonFenceLost):
			select {
			case <-r.ended: // that is why
			default:
				r.lose(ErrLeaseLost)
			}
			return
		default:
			r.settings.log.Warn("a lease could not be renewed", "scope", r.scope, "key", r.key, "error", err)
		}
	}
}

func (r *run) extend() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), r.settings.lease/3)
	defer cancel()
	_, err := r.works.Extend(ctx, &idempotencyv1.ExtendRequest{Scope: r.scope, Key: r.key, Fence: r.work.GetFence(),
		Lease: durationpb.New(r.settings.lease)})
	return err
}

const (
	endTimeout = 5 * time.Second  // while the caller waits
	lateFor    = 10 * time.Minute // after that
	latePause  = time.Second
)

// end records how the attempt ended. When ledgerd cannot be reached it goes on trying behind the caller's
// back: what was done was done, so he gets his answer. On an error of FENCE_LOST he must not.
func (r *run) end(o Outcome, answer *idempotencyv1.RecordedAnswer) error {
	if r.unknown.Load() {
		o = Park
	}
	err := r.settle(o, answer, endTimeout)
	if err == nil || final(err) {
		r.over()
		return err
	}
	r.settings.log.Error("how work ended could not be recorded yet", "scope", r.scope, "key", r.key, "fence",
		r.work.GetFence(), "error", err)
	r.late.Add(1)
	go func() {
		defer r.late.Done()
		defer r.over()
		for begun := time.Now(); time.Since(begun) < lateFor; {
			wait := time.NewTimer(latePause)
			<-wait.C
			if err = r.settle(o, answer, endTimeout); err == nil || final(err) {
				break
			}
		}
		if err != nil {
			r.settings.log.Error("how work ended was not recorded", "scope", r.scope, "key", r.key, "fence",
				r.work.GetFence(), "error", err)
		}
	}()
	return nil
}

func (r *run) over() {
	close(r.ended)
	r.expiry.Stop()
	r.lose(context.Canceled)
}

// final tells that trying again cannot help.
func final(err error) bool {
	e, ok := client.AsError(err)
	return ok && (errors.Is(err, client.ReasonFenceLost) || e.Class == client.ClassBadRequest)
}

var outcomes = map[Outcome]idempotencyv1.WorkOutcome{Done: idempotencyv1.WorkOutcome_WORK_OUTCOME_DONE,
	Refused: idempotencyv1.WorkOutcome_WORK_OUTCOME_REFUSED, Park: idempotencyv1.WorkOutcome_WORK_OUTCOME_UNKNOWN}

func (r *run) settle(o Outcome, answer *idempotencyv1.RecordedAnswer, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), timeout)
	defer cancel()
	outcome, recorded := outcomes[o]
	if !recorded {
		_, err := r.works.Abandon(ctx, &idempotencyv1.AbandonRequest{Scope: r.scope, Key: r.key,
			Fence: r.work.GetFence(), Forget: o == Forget})
		return err
	}
	_, err := r.works.Complete(ctx, &idempotencyv1.CompleteRequest{Scope: r.scope, Key: r.key, Fence: r.work.GetFence(),
		Outcome: outcome, Answer: answer})
	return err
}

// Bounds of what can be recorded.
const (
	maxRecorded      = 1 << 20
	maxHeaders       = 60
	maxHeaderName    = 128
	maxHeaderValue   = 8 << 10
	maxHeadersInSize = 48 << 10
)

// bodyHeader tells repeats that the first answer's body was too large to be kept.
const bodyHeader = "Idempotency-Body"

// recorded is an answer as it is kept.
func (s *settings) recorded(status int, h http.Header, body []byte) *idempotencyv1.RecordedAnswer {
	a := &idempotencyv1.RecordedAnswer{Status: int32(status), Body: body}
	if len(body) > maxRecorded {
		a.Body = nil
		a.Headers = append(a.Headers, &idempotencyv1.RecordedHeader{Name: bodyHeader, Value: "omitted"})
	}
	names, size := make([]string, 0, len(h)), 0
	for name := range h {
		names = append(names, name)
	}
	slices.Sort(names) // the same answer is recorded in the same way
	for _, name := range names {
		for _, value := range h[name] {
			value = strings.ToValidUTF8(strings.ReplaceAll(value, "\x00", ""), "")
			size += len(name) + len(value)
			if s.kept(name) && len(name) <= maxHeaderName && len(value) <= maxHeaderValue && size <= maxHeadersInSize &&
				len(a.Headers) < maxHeaders {
				a.Headers = append(a.Headers, &idempotencyv1.RecordedHeader{Name: name, Value: value})
			}
		}
	}
	return a
}

// unreachable tells an error for which a guard may fail open: ledgerd could not be asked. FENCE_LOST is an answer:
// somebody else has the work.
func unreachable(err error) bool {
	e, ok := client.AsError(err)
	if errors.Is(err, client.ReasonFenceLost) {
		return false
	}
	return !ok || e.Class == client.ClassSystem || e.Class == client.ClassConflict ||
		e.Class == "" && e.Code != connect.CodeUnauthenticated && e.Code != connect.CodePermissionDenied
}
