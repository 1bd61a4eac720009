package sms

import (
	"context"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/httpsend"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// verdict is the meaning of a provider's error code.
type verdict struct {
	outcome send.Outcome
	wait    time.Duration // before the next attempt; 0: the default backoff
	down    bool          // a problem of the account or the service, not of the message
}

// verdicts are verdicts by code. A code A.B.C that is missing has the verdict of A.B or A.
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
	account   = verdict{outcome: send.Refused, down: true} // wrong password, no balance
)

func later(wait time.Duration) verdict { return verdict{outcome: send.Temporary, wait: wait} }

// byStatus classifies an HTTP status without a known error code. A 4xx response means that the message was not
// accepted; 5xx is ambiguous, and below 400 the response cannot be interpreted.
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

// failed returns the Failure for a verdict, with the provider's code and text.
func (v verdict) failed(m *send.Message, a *httpsend.Answer, provider, code, text string) *send.Failure {
	f := failure(v.outcome, provider+"_"+code, httpsend.Clean(m, text))
	f.Down = v.down
	if v.outcome == send.Temporary {
		f.RetryAfter = max(v.wait, a.RetryAfter)
	}
	return f
}

// ask makes a request. An unreachable provider is Down.
func ask(ctx context.Context, c *httpsend.Client, r *httpsend.Request) (*httpsend.Answer, *send.Failure) {
	a, f := c.Do(ctx, r)
	if f != nil && f.Outcome == send.Temporary && ctx.Err() == nil {
		f.Down = true
	}
	return a, f
}
