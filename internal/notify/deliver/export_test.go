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
	batch := []*result{{job: &job{Job: failed}, state: "failed", kind: "failed", code: "x", wait: time.Minute},
		(&job{Job: unasked, was: queued}).unsent()}
	return errors.Join(p.write.once(slices.Clone(batch)), p.write.once(batch))
}

// Mark marks a message.
func (p *Pool) Mark(j *send.Job, provider string) (done bool, err error) {
	all, err := p.mark.once([]*marking{{job: &job{Job: j}, need: time.Second, provider: provider}})
	return all[0] == markDone, err
}

// CountParked counts those that wait for a person or a report.
func (p *Pool) CountParked(ctx context.Context) { p.countParked(ctx) }

// Bytes tells how large the messages of a channel are that are held.
func (p *Pool) Bytes(c send.Channel) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lanes[c].bytes
}

// Lane is a channel in memory, alone.
type Lane struct{ *lane }

// NewLane makes one.
func NewLane(attempts, room int, bytes int64) Lane {
	return Lane{newLane(send.SMS, nil, Policy{Attempts: attempts, Timeout: time.Second}, room, bytes, time.Minute)}
}

// Reserve, Add, Next and End are what the pool does with a lane.
func (l Lane) Reserve(tenant int32, n int) int { return l.reserve(tenant, n, assumed) }

// Add queues a message that is leased for so long.
func (l Lane) Add(tenant int32, priority int16, lease time.Duration) {
	l.add(&job{Job: &send.Job{Message: send.Message{Tenant: tenant}, Priority: priority, Until: time.Now().Add(lease)},
		size: assumed})
}

// AddTo queues one for an endpoint, unless it is crowded.
func (l Lane) AddTo(tenant int32, endpoint string) (goesBackFor time.Duration) {
	j := hook(tenant, endpoint)
	if goesBackFor = l.crowded(j); goesBackFor == 0 {
		l.add(j)
	}
	return goesBackFor
}

func hook(tenant int32, endpoint string) *job {
	return &job{Job: &send.Job{Message: send.Message{Tenant: tenant, Channel: send.Webhook, Recipient: endpoint},
		Until: time.Now().Add(time.Minute)}, size: assumed}
}

// NextTo begins an attempt, and tells at which endpoint.
func (l Lane) NextTo() string {
	if j := l.next(); j != nil {
		return j.Recipient
	}
	return ""
}

// EndAt ends an attempt at an endpoint that took so long.
func (l Lane) EndAt(tenant int32, endpoint string, took time.Duration) {
	l.ended(hook(tenant, endpoint), took)
	l.release(tenant, 1, assumed)
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
	l.ended(&job{Job: &send.Job{Message: send.Message{Tenant: tenant}}}, time.Millisecond)
	l.release(tenant, 1, assumed)
}

// Late tells how many messages cannot begin in time any more, of which all is written then.
func (l Lane) Late() int {
	all := l.late()
	for _, j := range all {
		l.release(j.Tenant, 1, assumed)
	}
	return len(all)
}

// Unasked is for how long a message goes back that nobody could be asked for.
func (l Lane) Unasked(tenant int32, wait time.Duration) time.Duration {
	return l.unasked(hook(tenant, ""), wait)
}

// Left tells what is held.
func (l Lane) Left() (messages, tenants, running int, bytes int64) {
	return l.held, len(l.lines), l.running, l.bytes
}

// Resize changes the size of a message.
func (l Lane) Resize(tenant int32, by int64) { l.resize(tenant, by) }
