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

// attempt makes one attempt, if there is time enough for it.
func (p *Pool) attempt(l *lane, j *job) *result {
	begun := time.Now() // before the lease is looked at: who stands still after that has no time left when it goes on
	switch {
	case !j.lasts(l.need) || p.sending.Err() != nil:
		return j.unsent()
	case p.poll.time(begun).After(j.GiveUpAt): // it waited here
		return j.end("expired", "it was not sent before its give_up_after")
	}
	if j.Park {
		switch p.mark.mark(j, l.need, "") {
		case markFailed:
			return j.unsent()
		case markRefused:
			p.Metrics.lost("mark")
			return &result{job: j, none: true}
		}
		begun = time.Now()
		if !j.lasts(l.need) || p.sending.Err() != nil { // this process stood still meanwhile, or ends
			return j.unsent()
		}
	}
	p.Metrics.pickedUp(l.channel, time.Since(j.begun))
	receipt, failure := p.send(l, j, begun.Add(l.Timeout))
	r := l.judge(j, receipt, failure)
	if r.sent || r.kind != "" { // else nobody was asked
		p.Metrics.attempted(l.channel, r, failure, time.Since(begun))
	}
	return r
}

// send asks the Sender, for no longer than the lease lasts. A panic is an end that nobody knows.
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
	j.Turn = func(_ context.Context, provider string) error { // that is about to be asked, and is not the first
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
		default: // its words may name the recipient
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

// judge tells what an attempt means for its message.
func (l *lane) judge(j *job, receipt send.Receipt, f *send.Failure) *result {
	if f == nil {
		return &result{job: j, sent: true, provider: receipt.Provider, providerMessageID: receipt.ProviderMessageID}
	}
	r := &result{job: j, state: failed, kind: failed, provider: f.Provider, code: f.Code, text: f.Text,
		unsure: j.Unsure, wait: l.wait(j.Attempt, f)}
	if r.provider == "" || j.Unsure {
		r.provider = j.LastProvider // who may have sent it is asked again
	}
	if f.Outcome == send.Temporary && f.Provider == "" && f.RetryAfter > 0 {
		r = j.unsent() // nobody was asked: it is no attempt
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
	case f.Outcome != send.Temporary || last: // nobody will send it
		r.state, r.kind = dead, dead
		if j.Unsure { // but may have
			r.state, r.kind = unknown, unknown
		}
	}
	return r
}

// wait is a random time that grows with the attempts, so that many that failed together do not come back together. The
// provider's wish is its least.
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
