package deliver

import (
	"cmp"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// States of queue rows, and kinds of events.
const (
	queued  = "queued"
	sending = "sending"
	failed  = "failed"
	unknown = "unknown"
	dead    = "dead"
)

// job is a message that this process holds.
type job struct {
	*send.Job
	prevState string    // state of the row before this lease
	dueSince  time.Time // when the message became due, by this process's clock
	size      int64     // approximate memory, bytes
}

// compare orders jobs in lock order.
func (j *job) compare(o *job) int {
	return cmp.Or(cmp.Compare(j.Tenant, o.Tenant), cmp.Compare(j.ID, o.ID))
}

// leaseCovers reports whether at least need is left of the lease. It checks the wall clock too: the monotonic clock may
// stop while the machine sleeps.
func (j *job) leaseCovers(need time.Duration) bool {
	now := time.Now()
	return j.Until.Sub(now) > need && j.Until.Round(0).Sub(now.Round(0)) > need
}

// result is the outcome of a job, to be written.
type result struct {
	job   *job
	sent  bool
	lost  bool   // write nothing: another process has the message
	state string // new state of the row, unless sent
	kind  string // kind of the event; empty: given back without an attempt
	wait  time.Duration

	provider, providerMessageID, code, text string

	unsure  bool
	retried bool // an earlier write may have committed
}

// giveBack returns a message to the queue without an attempt.
func (j *job) giveBack() *result {
	state := j.prevState
	if state == sending {
		state = queued
	}
	return &result{job: j, state: state, provider: j.LastProvider, unsure: j.Unsure}
}

// giveUp ends a message that is not sent: dead, or unknown if an earlier attempt may have sent it.
func (j *job) giveUp(code, text string) *result {
	r := &result{job: j, state: dead, kind: dead, code: code, text: text, provider: j.LastProvider, unsure: j.Unsure}
	if j.Unsure {
		r.state, r.kind = unknown, unknown
	}
	return r
}

// assumed is the size of a message whose content has not been read.
const assumed = 4 << 10

func sizeOf(m *send.Message) int64 {
	c := &m.Content
	n := 1024 + len(m.Recipient) + len(c.Subject) + len(c.Text) + len(c.HTML) + len(c.Data)
	for _, a := range c.Attachments {
		n += 128 + len(a.Data)
	}
	for k, v := range c.Headers {
		n += 64 + len(k) + len(v)
	}
	for name, p := range c.Template {
		n += 32 + len(name) + len(p)
	}
	params := len(c.Params)
	for _, p := range c.Params {
		n += len(p.Name) + len(p.Value)
	}
	for _, of := range c.ProviderParams {
		params += len(of)
		for _, p := range of {
			n += len(p.Name) + len(p.Value)
		}
	}
	n += 32 * params
	return int64(n)
}
