package deliver

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/deliver/internal/db"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// Steered runs statements as the pool does.
func (p *Pool) Steered(ctx context.Context, all ...func(db.DBTX) error) (time.Time, error) {
	return p.steered(ctx, all...)
}

// Wait is the wait after an attempt of a channel.
func (p *Pool) Wait(c send.Channel, attempt int, f *send.Failure) time.Duration {
	return p.lanes[c].wait(attempt, f)
}

// FailTwice writes twice that an attempt failed, and twice that nobody was asked, as after answers that were lost.
func (p *Pool) FailTwice(failed, unasked *send.Job) error {
	batch := []*result{{job: &job{Job: failed}, state: "failed", kind: "failed", code: "x", wait: time.Minute}, (&job{Job: unasked, was: queued}).unsent()}
	return errors.Join(p.write.once(slices.Clone(batch)), p.write.once(batch))
}

// Mark marks a message.
func (p *Pool) Mark(j *send.Job, provider string) (done bool, err error) {
	all, err := p.mark.once([]*marking{{job: &job{Job: j}, need: time.Second, provider: provider}})
	return all[0] == markDone, err
}

// CountParked counts those that wait for a person or a report.
func (p *Pool) CountParked(ctx context.Context) { p.countParked(ctx) }

// Lane is a channel in memory, alone.
type Lane struct{ *lane }

// NewLane makes one.
func NewLane(attempts, room int, bytes int64) Lane {
	return Lane{newLane(send.SMS, nil, Manner{Attempts: attempts, Timeout: time.Second}, room, bytes, time.Minute)}
}

// Reserve, Add, Next and End are what the pool does with a lane.
func (l Lane) Reserve(tenant int32, n int) int { return l.reserve(tenant, n, assumed) }

// Add queues a message that ends leased for so long.
func (l Lane) Add(tenant int32, priority int16, lease time.Duration) {
	l.add(&job{Job: &send.Job{Message: send.Message{Tenant: tenant}, Priority: priority, Until: time.Now().Add(lease)}, size: assumed})
}

// Next begins an attempt, and tells whose; 0: of nobody.
func (l Lane) Next() (tenant int32, priority int16) {
	if j := l.next(); j != nil {
		return j.Tenant, j.Priority
	}
	return 0, 0
}

// End ends an attempt, of which all is written.
func (l Lane) End(tenant int32) {
	l.ended(&job{Job: &send.Job{Message: send.Message{Tenant: tenant}}})
	l.release(tenant, 1, assumed)
}

// Late tells how many messages cannot begin in time any more.
func (l Lane) Late() int { return len(l.late()) }

// Adapt is told how many were late.
func (l Lane) Adapt(late int) { l.adapt(late) }

// Left tells what is held.
func (l Lane) Left() (messages, tenants, running int, bytes int64) {
	return l.held, len(l.lines), l.running, l.bytes
}

// Resize changes the size of a message.
func (l Lane) Resize(tenant int32, by int64) { l.resize(tenant, by) }
