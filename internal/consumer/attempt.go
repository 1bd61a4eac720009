package consumer

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/inbox"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/rpc"
)

const (
	// attemptTime bounds one attempt. Shutdown does not cut an attempt off, so it must not last forever.
	attemptTime = 10 * time.Second
	// transientWait is the wait after a transient error without a RetryAfter.
	transientWait = time.Second
)

// attempt processes a message once and reports whether it is settled: it took effect, now or earlier, or is
// dead. Otherwise it returns the wait before the next attempt.
func (c *Consumer) attempt(ctx context.Context, d *Delivery) (settled bool, wait time.Duration) {
	id, ok := c.Settings.nameOf(d)
	in := c.incoming(inbox.Key{Tenant: c.Tenant, Group: c.Settings.Group, ID: id}, cut(d.Topic, 250), d.Body)
	in.RequestID = header(d, rpc.RequestIDHeader)
	unnamed := ""
	if !ok {
		unnamed = "it has no usable message id: none at " + c.Settings.MessageID + ", or not 1 to 256 bytes of UTF-8"
	}
	return c.try(ctx, in, unnamed)
}

// try runs a message and counts the outcome. A message without a usable id always fails.
func (c *Consumer) try(ctx context.Context, in *rpc.Incoming, unnamed string) (settled bool, wait time.Duration) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), attemptTime)
	defer cancel()
	outcome := ""
	if unnamed != "" {
		outcome, wait = c.fail(ctx, in, unnamed, true)
	} else {
		outcome, wait = c.run(ctx, in)
	}
	c.Metrics.messages.WithLabelValues(c.Settings.Name, outcome).Inc()
	c.Log.Debug("message received", "consumer", c.Settings.Name, "message_id", in.Key.ID, "request_id", in.RequestID,
		"outcome", outcome)
	return outcome != "failed" && outcome != "later", wait
}

func (c *Consumer) run(ctx context.Context, in *rpc.Incoming) (outcome string, wait time.Duration) {
	err := c.Messages.Run(ctx, in)
	f := fault.Of(err)
	switch {
	case err == nil:
		return "done", 0
	case fault.Is(err, inbox.Duplicate):
		return "duplicate", 0
	case fault.Is(err, inbox.Dead):
		return "dead", 0
	case fault.Is(err, inbox.Differs):
		// Another message has the same id: give it a row of its own, to be neither lost nor mixed up with the first.
		in.Key.Part = "differs:" + hashOf(in.Delivery.Content)
		return c.fail(ctx, in, err.Error(), true)
	case f == nil || f.Reason == fault.InternalError:
		return c.fail(ctx, in, "internal error", false)
	case fault.Is(err, ledger.StaleVersion), fault.Is(err, fault.FenceLost), fault.Is(err, inbox.LeaseLost):
		// the content is the same on redelivery, so the error may be permanent
		return c.fail(ctx, in, err.Error(), false)
	case f.Reason.Class == fault.Conflict, f.Reason.Class == fault.System:
		return c.later(in, err)
	case f.Reason.Class == fault.Duplicate:
		return c.finish(ctx, in, f)
	}
	permanent := f.Reason == fault.FieldInvalid || f.Reason.Class == fault.Refusal && !c.Settings.RetryRefusals
	return c.fail(ctx, in, f.Error(), permanent)
}

// finish completes a message that took effect earlier, outside the inbox.
func (c *Consumer) finish(ctx context.Context, in *rpc.Incoming, f *fault.Fault) (outcome string, wait time.Duration) {
	if err := c.Messages.Finish(ctx, in, cut(f.Error(), 1000)); err != nil && !fault.Is(err, inbox.Duplicate) {
		return c.later(in, err)
	}
	return "duplicate", 0
}

// fail records a failed attempt.
func (c *Consumer) fail(ctx context.Context, in *rpc.Incoming, why string,
	permanent bool) (outcome string, wait time.Duration) {
	m, err := c.Messages.Fail(ctx, in, cut(why, 4000), permanent)
	switch {
	case err != nil:
		return c.later(in, err)
	case m.State == inbox.Died:
		c.Log.Warn("message is dead", "consumer", c.Settings.Name, "message_id", in.Key.ID, "part", in.Key.Part,
			"attempts", m.Attempts, "request_id", in.RequestID, "error", why)
		return "dead", 0
	case m.State == inbox.Succeeded:
		return "duplicate", 0
	}
	c.Log.Info("message failed", "consumer", c.Settings.Name, "message_id", in.Key.ID, "attempts", m.Attempts,
		"request_id", in.RequestID, "error", why)
	return "failed", max(m.RetryAt.Sub(m.BegunAt), time.Millisecond)
}

// later postpones a message without counting an attempt.
func (c *Consumer) later(in *rpc.Incoming, err error) (outcome string, wait time.Duration) {
	if f := fault.Of(err); f != nil {
		wait = f.RetryAfter
	}
	c.Log.Debug("message postponed", "consumer", c.Settings.Name, "message_id", in.Key.ID, "request_id", in.RequestID,
		"error", err)
	return "later", cmp.Or(wait, transientWait)
}

func header(d *Delivery, name string) string {
	for k, v := range d.Header {
		if strings.EqualFold(k, name) {
			return v
		}
	}
	return ""
}

// cut truncates a text to a number of bytes, and replaces characters that Postgres rejects by ?. With such a
// character a message could never be settled.
func cut(s string, most int) string {
	s = strings.ReplaceAll(s[:min(len(s), most)], "\x00", "?")
	return strings.ToValidUTF8(s, "?")
}
