package deliver

import (
	"cmp"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// States of rows, and kinds of events.
const (
	queued  = "queued"
	sending = "sending"
	failed  = "failed"
	unknown = "unknown"
	dead    = "dead"
)

// job is a message in this process.
type job struct {
	*send.Job
	was   string    // the state of its row before it was taken
	begun time.Time // since when it was to be sent, by this process's clock
	size  int64     // in memory, bytes
}

// compare is the order in which rows are locked.
func (j *job) compare(o *job) int {
	return cmp.Or(cmp.Compare(j.Tenant, o.Tenant), cmp.Compare(j.ID, o.ID))
}

// lasts tells whether the lease has so much left. A machine that slept, whose monotonic clock may have stood, is
// found out by the other clock.
func (j *job) lasts(need time.Duration) bool {
	now := time.Now()
	return j.Until.Sub(now) > need && j.Until.Round(0).Sub(now.Round(0)) > need
}

// result is what became of a message, to be written.
type result struct {
	job   *job
	sent  bool
	none  bool   // there is nothing to write: others have it
	state string // of its row, unless it was sent
	kind  string // of the event; empty: it is given back unsent
	wait  time.Duration

	provider, providerMessageID, code, text string

	unsure bool
	again  bool // it was written before, and perhaps committed
}

// unsent gives a message back to whoever takes it next.
func (j *job) unsent() *result {
	state := j.was
	if state == sending {
		state = queued
	}
	return &result{job: j, state: state, provider: j.LastProvider, unsure: j.Unsure}
}

// end is the last result of a message that is not sent: dead, or unknown if an earlier attempt may have sent it.
func (j *job) end(code, text string) *result {
	r := &result{job: j, state: dead, kind: dead, code: code, text: text, provider: j.LastProvider, unsure: j.Unsure}
	if j.Unsure {
		r.state, r.kind = unknown, unknown
	}
	return r
}

// assumed is the size of a message that is not known yet.
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
