package deliver

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/deliver/internal/db"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

func (p *Pool) Transact(ctx context.Context, all ...func(db.DBTX) error) (time.Time, error) {
	return p.transact(ctx, all...)
}

func (p *Pool) Wait(c send.Channel, attempt int, f *send.Failure) time.Duration {
	return p.lanes[c].wait(attempt, f)
}

// FailTwice writes a failed attempt twice, and an attempt without a provider twice, as after lost responses.
func (p *Pool) FailTwice(failed, unasked *send.Job) error {
	batch := []*result{{job: &job{Job: failed}, state: "failed", kind: "failed", code: "x", wait: time.Minute},
		(&job{Job: unasked, prevState: queued}).giveBack()}
	return errors.Join(p.write.once(slices.Clone(batch)), p.write.once(batch))
}

func (p *Pool) Mark(j *send.Job, provider string) (done bool, err error) {
	all, err := p.mark.once([]*marking{{job: &job{Job: j}, need: time.Second, provider: provider}})
	return all[0] == markDone, err
}

func (p *Pool) CountParked(ctx context.Context) { p.countParked(ctx) }

func (p *Pool) Bytes(c send.Channel) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lanes[c].bytes
}

// Lane is a lane without a pool.
type Lane struct{ *lane }

func NewLane(attempts, room int, bytes int64) Lane {
	return Lane{newLane(send.SMS, nil, Policy{Attempts: attempts, Timeout: time.Second}, room, bytes, time.Minute)}
}

func (l Lane) Reserve(tenant int32, n int) int { return l.reserve(tenant, n, assumed) }

// Add queues a message with the given lease.
func (l Lane) Add(tenant int32, priority int16, lease time.Duration) {
	l.add(&job{Job: &send.Job{Message: send.Message{Tenant: tenant}, Priority: priority, Until: time.Now().Add(lease)},
		size: assumed})
}

// AddTo queues a message for an endpoint, or returns after which wait it goes back to the database.
func (l Lane) AddTo(tenant int32, endpoint string) (goesBackFor time.Duration) {
	j := hook(tenant, endpoint)
	if goesBackFor = l.overflowWait(j); goesBackFor == 0 {
		l.add(j)
	}
	return goesBackFor
}

func hook(tenant int32, endpoint string) *job {
	return &job{Job: &send.Job{Message: send.Message{Tenant: tenant, Channel: send.Webhook, Recipient: endpoint},
		Until: time.Now().Add(time.Minute)}, size: assumed}
}

// NextTo begins an attempt and returns its endpoint.
func (l Lane) NextTo() string {
	if j := l.next(); j != nil {
		return j.Recipient
	}
	return ""
}

// EndAt ends an attempt at an endpoint, with its duration.
func (l Lane) EndAt(tenant int32, endpoint string, took time.Duration) {
	l.attemptEnded(hook(tenant, endpoint), took)
	l.release(tenant, 1, assumed)
}

// Next begins an attempt and returns its tenant; 0: none may begin.
func (l Lane) Next() (tenant int32, priority int16) {
	if j := l.next(); j != nil {
		return j.Tenant, j.Priority
	}
	return 0, 0
}

// End ends an attempt and releases its room.
func (l Lane) End(tenant int32) {
	l.attemptEnded(&job{Job: &send.Job{Message: send.Message{Tenant: tenant}}}, time.Millisecond)
	l.release(tenant, 1, assumed)
}

// Late expires messages, releases their room and returns their number.
func (l Lane) Late() int {
	all := l.expire()
	for _, j := range all {
		l.release(j.Tenant, 1, assumed)
	}
	return len(all)
}

func (l Lane) Unasked(tenant int32, wait time.Duration) time.Duration {
	return l.unaskedWait(hook(tenant, ""), wait)
}

func (l Lane) Left() (messages, tenants, running int, bytes int64) {
	return l.held, len(l.tenants), l.running, l.bytes
}

func (l Lane) Resize(tenant int32, by int64) { l.resize(tenant, by) }
