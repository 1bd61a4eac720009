package sms

import (
	"context"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/internal/httpsend"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// verdict is what an error code of a provider means for the message.
type verdict struct {
	outcome send.Outcome
	wait    time.Duration // before the next attempt; 0: as usual
	down    bool          // it is not about this message: the account, or the service
}

// verdicts by code. A code like A.B.C that is not in it means what A.B or A does.
type verdicts map[string]verdict

func (t verdicts) of(code string) (verdict, bool) {
	for {
		if v, ok := t[code]; ok {
			return v, true
		}
		i := strings.LastIndexByte(code, '.')
		if i < 0 {
			return verdict{}, false
		}
		code = code[:i]
	}
}

var (
	refused   = verdict{outcome: send.Refused}
	permanent = verdict{outcome: send.Permanent}
	unknown   = verdict{outcome: send.Unknown}
	account   = verdict{outcome: send.Refused, down: true} // a wrong password, no money
)

func later(wait time.Duration) verdict { return verdict{outcome: send.Temporary, wait: wait} }

// byStatus is what an HTTP status means where there is no error code that we know. A request that was answered
// 4xx was not taken; of 5xx nobody knows how far it came.
func byStatus(status int) verdict {
	switch {
	case status == 429:
		return later(time.Second)
	case status == 401 || status == 403:
		return account
	case status >= 400 && status < 500:
		return refused
	}
	return unknown
}

// failed makes the failure of a verdict: code is the provider's, text in its words.
func (v verdict) failed(m *send.Message, a *httpsend.Answer, provider, code, text string) *send.Failure {
	f := failure(v.outcome, provider+"_"+code, httpsend.Clean(m, text))
	f.Down = v.down
	if v.outcome == send.Temporary {
		f.RetryAfter = max(v.wait, a.RetryAfter)
	}
	return f
}

// ask asks a provider. One that cannot be reached takes no other message either.
func ask(ctx context.Context, c *httpsend.Client, r *httpsend.Request) (*httpsend.Answer, *send.Failure) {
	a, f := c.Do(ctx, r)
	if f != nil && f.Outcome == send.Temporary && ctx.Err() == nil {
		f.Down = true
	}
	return a, f
}
