package deliver

import (
	"slices"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// lane is the in-memory queue of one channel. A tenant gets at most as much room and as many attempts as stay free for
// others: one flooding tenant gets half, two get a third each, and a newcomer always finds some. Endpoints of a tenant
// share its attempts in the same way. Guarded by Pool.mu.
type lane struct {
	Policy
	channel    send.Channel
	sender     send.Sender
	need       time.Duration // remaining lease that an attempt requires to begin
	localWait  time.Duration // a message may wait here for this long
	tenants    map[int32]*tenantQueue
	turns      []*tenantQueue // tenants with waiting messages, round-robin
	backlogged map[int32]bool // tenants that have more messages in the database than fit here
	load
	running  int
	capacity load
	// typicalSize is the size that a message is assumed to have before its content is read: close to the
	// recent maximum.
	typicalSize int64
}

// load counts messages and bytes.
type load struct {
	held  int
	bytes int64
}

// tenantQueue holds a tenant's messages in a lane.
type tenantQueue struct {
	tenant int32
	ends   map[string]*endpoint
	turns  [3][]*endpoint // endpoints with waiting messages, round-robin, by priority
	waits  int
	load
	running int
	inTurns bool // the tenant is in lane.turns
	// room limits the number of messages. It shrinks while messages would wait here for too long.
	room     int
	returnAt time.Time // of the last message that went back because no provider was asked, see stagger
}

// endpoint is a tenant's webhook endpoint. On other channels all recipients share one.
type endpoint struct {
	name     string
	waiting  [3][]*job // by priority
	waits    int
	running  int
	latency  time.Duration // moving average of the duration of an attempt
	returnAt time.Time     // of the last message that went back because of overflowWait, see stagger
}

func newLane(c send.Channel, s send.Sender, m Policy, room int, bytes int64, lease time.Duration) *lane {
	need := m.Timeout + lease/12
	return &lane{Policy: m, channel: c, sender: s, need: need, localWait: (lease - need) / 2,
		tenants: make(map[int32]*tenantQueue), backlogged: make(map[int32]bool),
		capacity: load{room, bytes}, typicalSize: firstTypicalSize}
}

// reserve reserves room for up to n messages, each of the given bytes, and returns for how many.
func (l *lane) reserve(tenant int32, n int, each int64) int {
	var has load
	room := l.capacity.held
	if x := l.tenants[tenant]; x != nil {
		has, room = x.load, x.room
	}
	// Half the excess, because each reserved message counts as held and also reduces what is free.
	n = min(n, room-has.held, (l.capacity.held-l.held-has.held+1)/2,
		int((l.capacity.bytes-l.bytes-has.bytes+each)/each/2))
	if n <= 0 {
		return 0
	}
	x := l.tenantQueue(tenant)
	x.held, x.bytes = x.held+n, x.bytes+int64(n)*each
	l.held, l.bytes = l.held+n, l.bytes+int64(n)*each
	return n
}

func (l *lane) tenantQueue(tenant int32) *tenantQueue {
	x := l.tenants[tenant]
	if x == nil {
		x = &tenantQueue{tenant: tenant, ends: make(map[string]*endpoint), room: l.capacity.held}
		l.tenants[tenant] = x
	}
	return x
}

func (l *lane) resize(tenant int32, by int64) {
	l.tenants[tenant].bytes += by
	l.bytes += by
}

// firstTypicalSize applies before any message was read. It is large, to be safe.
const firstTypicalSize = 64 << 10

// observeSize updates typicalSize: it grows at once and shrinks slowly.
func (l *lane) observeSize(size int64) {
	if size < l.typicalSize {
		size = max(size, l.typicalSize-l.typicalSize/128, assumed)
	}
	l.typicalSize = size
}

// release releases room.
func (l *lane) release(tenant int32, n int, bytes int64) {
	x := l.tenants[tenant]
	x.held, x.bytes = x.held-n, x.bytes-bytes
	l.held, l.bytes = l.held-n, l.bytes-bytes
	if x.held == 0 {
		delete(l.tenants, tenant)
	}
}

// endpoint returns the endpoint of a message.
func (x *tenantQueue) endpoint(j *job) *endpoint {
	name := ""
	if j.Channel == send.Webhook {
		name = j.Recipient
	}
	e := x.ends[name]
	if e == nil {
		e = &endpoint{name: name}
		x.ends[name] = e
	}
	return e
}

// add queues a message for which room is reserved.
func (l *lane) add(j *job) {
	x := l.tenants[j.Tenant]
	e, p := x.endpoint(j), j.Priority
	if len(e.waiting[p]) == 0 {
		x.turns[p] = append(x.turns[p], e)
	}
	e.waiting[p] = append(e.waiting[p], j)
	e.waits++
	x.waits++
	if !x.inTurns {
		x.inTurns = true
		l.turns = append(l.turns, x)
	}
}

// next removes and returns a message whose attempt may begin, or nil.
func (l *lane) next() *job {
	free := l.Attempts - l.running
	if free <= 0 {
		return nil
	}
	for range len(l.turns) {
		x := l.turns[0]
		l.turns[0] = nil
		l.turns = l.turns[1:]
		var j *job
		if left := free - x.running; left > 0 {
			j = x.next(left)
		}
		if x.inTurns = x.waits > 0; x.inTurns {
			l.turns = append(l.turns, x)
		}
		if j != nil {
			l.running++
			return j
		}
	}
	return nil
}

// next returns a message of an endpoint with fewer than left running attempts, or nil. Priorities go in order,
// endpoints of a priority round-robin.
func (x *tenantQueue) next(left int) *job {
	for p := range x.turns {
		for range len(x.turns[p]) {
			e := x.turns[p][0]
			x.turns[p][0] = nil
			x.turns[p] = x.turns[p][1:]
			var j *job
			if e.name == "" || e.running < left {
				j = x.pop(e, p)
			}
			if len(e.waiting[p]) > 0 {
				x.turns[p] = append(x.turns[p], e)
			}
			if j != nil {
				e.running++
				x.running++
				return j
			}
		}
	}
	return nil
}

// pop removes the first waiting message of an endpoint.
func (x *tenantQueue) pop(e *endpoint, p int) *job {
	j := e.waiting[p][0]
	e.waiting[p][0] = nil
	e.waiting[p] = e.waiting[p][1:]
	e.waits--
	x.waits--
	return j
}

// attemptEnded frees the slot of an attempt. took is its duration; 0: no provider was asked.
func (l *lane) attemptEnded(j *job, took time.Duration) {
	x := l.tenants[j.Tenant]
	e := x.endpoint(j)
	switch {
	case e.latency == 0:
		e.latency = took
	case took > 0:
		e.latency += (took - e.latency) / 4
	}
	l.running--
	x.running--
	e.running--
	x.forget(e)
}

// forget drops an endpoint without messages.
func (x *tenantQueue) forget(e *endpoint) {
	if e.running+e.waits == 0 {
		delete(x.ends, e.name)
	}
}

// maxStagger limits the wait of a message that goes back.
const maxStagger = 5 * time.Minute

// stagger returns how long a message that goes back to the database waits there. It returns increasing waits, so that
// the messages of a slow or unreachable receiver do not return all at once. at is when the last of them returns.
func stagger(at *time.Time, least, each time.Duration) time.Duration {
	now := time.Now()
	if first := now.Add(least); at.Before(first) {
		*at = first
	}
	*at = at.Add(each)
	return min(at.Sub(now), maxStagger)
}

// slowLatency is the latency from which an endpoint counts as slow. Below it this machine itself may be the cause.
const slowLatency = time.Second

// overflowWait returns how long a message goes back to the database if its slow endpoint already has as many waiting
// messages as it can process in time; 0: queue it here.
func (l *lane) overflowWait(j *job) time.Duration {
	e := l.tenants[j.Tenant].endpoint(j)
	at := max(e.running, 1)
	if e.name == "" || e.latency < slowLatency || time.Duration(e.waits)*e.latency < l.localWait*time.Duration(at) {
		return 0
	}
	return stagger(&e.returnAt, l.localWait, e.latency/time.Duration(at))
}

// unaskedWait returns how long a message goes back to the database if no provider was asked to send it. Each return
// costs two updates, so at most 1,000 messages of a tenant return per second.
func (l *lane) unaskedWait(j *job, wait time.Duration) time.Duration {
	return max(wait, stagger(&l.tenants[j.Tenant].returnAt, 0, time.Millisecond))
}

// drain removes all waiting messages.
func (l *lane) drain() (all []*job) {
	for _, x := range l.turns {
		all = append(all, x.popWhile(func(*job) bool { return true })...)
	}
	return all
}

// popWhile removes messages from the front of each queue while holds is true.
func (x *tenantQueue) popWhile(holds func(*job) bool) (all []*job) {
	for p := range x.turns {
		x.turns[p] = slices.DeleteFunc(x.turns[p], func(e *endpoint) bool {
			for len(e.waiting[p]) > 0 && holds(e.waiting[p][0]) {
				all = append(all, x.pop(e, p))
			}
			x.forget(e)
			return len(e.waiting[p]) == 0
		})
	}
	return all
}

// expire, called every second, removes messages whose lease no longer covers an attempt. A tenant with such messages
// gets less room: in the database messages keep their order. Only the front of each queue is checked, because it is the
// oldest and nearly all leases are equally long.
func (l *lane) expire() (all []*job) {
	for _, x := range l.tenants {
		late := x.popWhile(func(j *job) bool { return !j.leaseCovers(l.need) })
		all = append(all, late...)
		if len(late) > 0 {
			x.room = max(min(x.room, x.held)/2, min(2*l.Attempts, l.capacity.held))
		} else {
			x.room = min(x.room+x.room/16+1, l.capacity.held)
		}
	}
	return all
}
