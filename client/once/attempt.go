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

// ErrLeaseLost is the cause of a handler's context if its lease could not be renewed: another attempt may begin
// soon.
var ErrLeaseLost = errors.New("once: the lease on the work is lost")

// Attempt is one run of a handler.
type Attempt struct {
	// Fence identifies the attempt and is greater than all earlier ones. Pass it on to the storage that the handler
	// writes to.
	Fence int64
	// Number counts the attempts at the work, from 1.
	Number int
	// TakenOver reports that the previous attempt was interrupted and may have done part of the work. Only set
	// with WithRerun.
	TakenOver bool
}

type attemptContext struct{}

// AttemptOf returns the attempt that a handler runs in; ok is false if the request is not guarded.
func AttemptOf(ctx context.Context) (a Attempt, ok bool) {
	if r, ok := ctx.Value(attemptContext{}).(*run); ok {
		return Attempt{Fence: r.work.GetFence(), Number: int(r.work.GetAttempt()),
			TakenOver: r.work.GetTakenOver()}, true
	}
	return a, false
}

// Unknown reports that the handler cannot know whether it did its work. Its answer is recorded, the work is
// parked, and no attempt runs until ResolveWork settles it.
func Unknown(ctx context.Context) {
	if r, ok := ctx.Value(attemptContext{}).(*run); ok {
		r.unknown.Store(true)
	}
}

// run is one attempt.
type run struct {
	*Middleware
	key     string
	work    *idempotencyv1.WorkRun
	unknown atomic.Bool
	ctx     context.Context // the handler's context
	lose    context.CancelCauseFunc
	expiry  *time.Timer // ends the lease
	ended   chan struct{}
}

// begin requests the right to run. It returns exactly one of its results.
func (g *Middleware) begin(ctx context.Context, key string, fingerprint []byte) (*run, *idempotencyv1.BeginResponse,
	error) {
	sent, once := time.Now(), client.NewKey()
	req := &idempotencyv1.BeginRequest{Scope: g.scope, Key: key, Fingerprint: fingerprint,
		Lease: durationpb.New(g.settings.lease), Life: durationpb.New(g.settings.life),
		Wait:       durationpb.New(g.settings.wait),
		ParkLapsed: !g.settings.rerun}
	res, err := g.ask(ctx, req, once)
	if err != nil && !permanent(err) {
		g.disown(ctx, req, once)
	}
	if err != nil || res.GetRun() == nil {
		return nil, res, err
	}
	// The handler completes even if its caller hangs up, because the caller may return for the answer.
	r := &run{Middleware: g, key: key, work: res.GetRun(), ended: make(chan struct{})}
	r.ctx, r.lose = context.WithCancelCause(context.WithValue(context.WithoutCancel(ctx), attemptContext{}, r))
	if time.Since(sent) > g.settings.lease/3 { // the call waited: when the lease began is unknown
		sent = time.Now()
		if err := r.extend(); err != nil {
			_ = r.settle(Free, nil, endTimeout)
			return nil, nil, err
		}
	}
	r.expiry = time.AfterFunc(r.left(sent), func() { r.lose(ErrLeaseLost) })
	go r.renewLoop()
	return r, nil, nil
}

// ask calls Begin and waits for the answer even if the caller leaves: otherwise the work would be held without
// a running attempt.
func (g *Middleware) ask(ctx context.Context, req *idempotencyv1.BeginRequest,
	once string) (*idempotencyv1.BeginResponse, error) {
	ctx, cancel := context.WithTimeout(client.WithKey(context.WithoutCancel(ctx), once), g.settings.wait+endTimeout)
	defer cancel()
	return g.works.Begin(ctx, req)
}

// disown abandons the work that a Begin with a lost answer may have acquired. Otherwise it would be parked when
// the lease expires, although no attempt ran. The same request key finds it.
func (g *Middleware) disown(ctx context.Context, req *idempotencyv1.BeginRequest, once string) {
	g.late.Add(1)
	go func() {
		defer g.late.Done()
		for begun := time.Now(); time.Since(begun) < g.settings.lease; {
			wait := time.NewTimer(latePause)
			<-wait.C
			res, err := g.ask(ctx, req, once)
			if err == nil && res.GetRun() != nil {
				r := &run{Middleware: g, key: req.GetKey(), work: res.GetRun(), ctx: ctx}
				err = r.settle(Free, nil, endTimeout)
			}
			if err == nil || permanent(err) {
				return
			}
		}
	}()
}

// left is how long a lease requested at a given time is safe to use, with a margin of a tenth.
func (r *run) left(sent time.Time) time.Duration {
	return time.Until(sent.Add(r.settings.lease - r.settings.lease/10))
}

// renewLoop renews the lease until the attempt has ended.
func (r *run) renewLoop() {
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
			case <-r.ended: // expected at the end
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
	lateFor    = 10 * time.Minute // afterwards
	latePause  = time.Second
)

// end records the outcome of the attempt. If ledgerd is unreachable it keeps trying in the background, and the
// caller still gets its answer, because the work was done. After FENCE_LOST the caller must not get it.
func (r *run) end(o Outcome, answer *idempotencyv1.RecordedAnswer) error {
	if r.unknown.Load() {
		o = Park
	}
	err := r.settle(o, answer, endTimeout)
	if err == nil || permanent(err) {
		r.finish()
		return err
	}
	r.settings.log.Error("the outcome could not be recorded yet", "scope", r.scope, "key", r.key, "fence",
		r.work.GetFence(), "error", err)
	r.late.Add(1)
	go func() {
		defer r.late.Done()
		defer r.finish()
		for begun := time.Now(); time.Since(begun) < lateFor; {
			wait := time.NewTimer(latePause)
			<-wait.C
			if err = r.settle(o, answer, endTimeout); err == nil || permanent(err) {
				break
			}
		}
		if err != nil {
			r.settings.log.Error("the outcome was not recorded", "scope", r.scope, "key", r.key, "fence",
				r.work.GetFence(), "error", err)
		}
	}()
	return nil
}

func (r *run) finish() {
	close(r.ended)
	r.expiry.Stop()
	r.lose(context.Canceled)
}

// permanent reports an error that retrying cannot fix.
func permanent(err error) bool {
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

// Limits of a recorded answer.
const (
	maxRecorded      = 1 << 20
	maxHeaders       = 60
	maxHeaderName    = 128
	maxHeaderValue   = 8 << 10
	maxHeadersInSize = 48 << 10
)

// bodyHeader tells repeats that the first answer's body was too large to record.
const bodyHeader = "Idempotency-Body"

// recorded converts an answer to its recorded form.
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
	slices.Sort(names) // equal answers are recorded equally
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

// unreachable reports an error after which a middleware may fail open: ledgerd gave no answer. FENCE_LOST is an
// answer: another attempt has the work.
func unreachable(err error) bool {
	e, ok := client.AsError(err)
	if errors.Is(err, client.ReasonFenceLost) {
		return false
	}
	return !ok || e.Class == client.ClassSystem || e.Class == client.ClassConflict ||
		e.Class == "" && e.Code != connect.CodeUnauthenticated && e.Code != connect.CodePermissionDenied
}
