package deliver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// attempt makes one attempt if enough of the lease is left.
func (p *Pool) attempt(l *lane, j *job) *result {
	// Before the lease check: if the process is suspended after the check, the timeout has passed when it resumes.
	begun := time.Now()
	switch {
	case !j.leaseCovers(l.need) || p.sending.Err() != nil:
		return j.giveBack()
	case p.poll.time(begun).After(j.GiveUpAt): // expired while queued in memory
		return j.giveUp("expired", "it was not sent within its give_up_after")
	}
	if j.Park {
		switch p.mark.mark(j, l.need, "") {
		case markFailed:
			return j.giveBack()
		case markRefused:
			p.Metrics.lost("mark")
			return &result{job: j, lost: true}
		}
		begun = time.Now()
		if !j.leaseCovers(l.need) || p.sending.Err() != nil { // suspended meanwhile, or shutting down
			return j.giveBack()
		}
	}
	p.Metrics.pickedUp(l.channel, time.Since(j.dueSince))
	receipt, failure := p.send(l, j, begun.Add(l.Timeout))
	r := l.classify(j, receipt, failure)
	if r.sent || r.kind != "" { // otherwise no provider was asked
		p.Metrics.attempted(l.channel, r, failure, time.Since(begun))
	}
	return r
}

// send calls the Sender until the given time. A panic counts as an unknown outcome.
func (p *Pool) send(l *lane, j *job, until time.Time) (receipt send.Receipt, failure *send.Failure) {
	ctx, cancel := context.WithDeadline(p.sending, until)
	defer cancel()
	defer func() {
		if r := recover(); r != nil {
			p.Log.Error("panic in a sender", "channel", l.channel, "tenant_id", j.Tenant, "message_id", j.ID, "panic",
				fmt.Sprintf("%T", r),
				"stack", string(debug.Stack()))
			failure = &send.Failure{Outcome: send.Unknown, Code: "panic", Text: "the sender panicked: see the log"}
		}
	}()
	j.MarkProvider = func(_ context.Context, provider string) error {
		switch p.mark.mark(j, time.Until(until), provider) {
		case markRefused:
			return errLost
		case markFailed:
			return errNotMarked
		}
		return nil
	}
	receipt, err := l.sender.Send(ctx, &j.Message)
	if err != nil {
		failure = send.Failed(err)
		switch {
		case failure.Code != "unexpected":
		case p.sending.Err() != nil:
			failure = &send.Failure{Outcome: send.Unknown, Code: "cut_off",
				Text: "the server was shut down during the attempt"}
		default: // the error may contain the recipient
			failure = &send.Failure{Outcome: send.Unknown, Code: "unexpected",
				Text: fmt.Sprintf("the sender returned an unexpected error: %T", err)}
		}
	}
	return receipt, failure
}

var (
	errLost      = errors.New("deliver: another process has the message")
	errNotMarked = errors.New("deliver: the database did not answer in time")
)

// classify turns the outcome of an attempt into a result.
func (l *lane) classify(j *job, receipt send.Receipt, f *send.Failure) *result {
	if f == nil {
		return &result{job: j, sent: true, provider: receipt.Provider, providerMessageID: receipt.ProviderMessageID}
	}
	r := &result{job: j, state: failed, kind: failed, provider: f.Provider, code: f.Code, text: f.Text,
		unsure: j.Unsure, wait: l.wait(j.Attempt, f)}
	if r.provider == "" || j.Unsure {
		r.provider = j.LastProvider // the next attempt asks the provider that may have sent the message
	}
	if f.Outcome == send.Temporary && f.Provider == "" && f.RetryAfter > 0 {
		r = j.giveBack() // no provider was asked: not an attempt
		r.wait = l.wait(1, f)
		return r
	}
	last := j.Attempt >= j.MaxAttempts
	switch {
	case f.Outcome == send.Unknown:
		r.kind = unknown
		r.unsure = !j.Park
		if f.Provider != "" {
			r.provider = f.Provider
		}
		if j.Park || last {
			r.state = unknown
		}
	case f.Outcome != send.Temporary || last: // no provider will accept it
		r.state, r.kind = dead, dead
		if j.Unsure { // an earlier attempt may have sent it
			r.state, r.kind = unknown, unknown
		}
	}
	return r
}

// wait returns a random wait, exponential in the attempts, so that messages that failed together do not retry together.
// It is at least the provider's RetryAfter.
func (l *lane) wait(attempt int, f *send.Failure) time.Duration {
	most := l.Base
	for n := 1; n < attempt && most < l.Max; n++ {
		most *= 2
	}
	wait := rand.N(min(most, l.Max) + 1)
	if f.RetryAfter > wait {
		wait = f.RetryAfter + rand.N(min(f.RetryAfter/10, time.Minute)+1)
	}
	return wait
}
