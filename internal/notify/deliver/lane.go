package deliver

import (
	"slices"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// lane is a channel in this process. A tenant has at most as much of it, of room and of attempts, as is left free: one
// that floods gets half, two a third each, and there is always some for the next. So it is with attempts among the
// endpoints of a tenant too, each of which is a server of its own. Guarded by Pool.mu.
type lane struct {
	Policy
	channel send.Channel
	sender  send.Sender
	need    time.Duration // of a lease, for an attempt to begin
	soon    time.Duration // what comes to its turn within that is kept waiting here
	lines   map[int32]*line
	turns   []*line        // with messages that wait, in turn
	behind  map[int32]bool // tenants with more in the database than there was room for
	share
	running int
	most    share
	// usual is how large a message of the channel is taken to be before it is read: as the greatest lately.
	usual int64
}

// share is what is held of a lane's room: messages, and their bytes.
type share struct {
	held  int
	bytes int64
}

// line is a tenant in a lane.
type line struct {
	tenant int32
	ends   map[string]*endpoint
	turns  [3][]*endpoint // with messages that wait, in turn, by priority
	waits  int
	share
	running int
	turn    bool // it is in turns
	// room is how many messages it may hold: fewer than its share if they would wait here for too long.
	room int
	back time.Time // as of putOff: of messages that nobody could be asked for
}

// endpoint is one of a tenant's; where recipients are no servers of their own, all of them are one.
type endpoint struct {
	name    string
	waiting [3][]*job // by priority
	waits   int
	running int
	took    time.Duration // by an attempt, lately
	back    time.Time     // as of putOff: of messages that would wait here for too long
}

func newLane(c send.Channel, s send.Sender, m Policy, room int, bytes int64, lease time.Duration) *lane {
	need := m.Timeout + lease/12
	return &lane{Policy: m, channel: c, sender: s, need: need, soon: (lease - need) / 2, lines: make(map[int32]*line),
		behind: make(map[int32]bool),
		most:   share{room, bytes}, usual: firstUsual}
}

// reserve takes room for up to n messages of so many bytes each, and tells for how many there is.
func (l *lane) reserve(tenant int32, n int, each int64) int {
	var has share
	room := l.most.held
	if x := l.lines[tenant]; x != nil {
		has, room = x.share, x.room
	}
	// Half of what would be too much, since what is taken is both more held and less free.
	n = min(n, room-has.held, (l.most.held-l.held-has.held+1)/2, int((l.most.bytes-l.bytes-has.bytes+each)/each/2))
	if n <= 0 {
		return 0
	}
	x := l.line(tenant)
	x.held, x.bytes = x.held+n, x.bytes+int64(n)*each
	l.held, l.bytes = l.held+n, l.bytes+int64(n)*each
	return n
}

func (l *lane) line(tenant int32) *line {
	x := l.lines[tenant]
	if x == nil {
		x = &line{tenant: tenant, ends: make(map[string]*endpoint), room: l.most.held}
		l.lines[tenant] = x
	}
	return x
}

func (l *lane) resize(tenant int32, by int64) {
	l.lines[tenant].bytes += by
	l.bytes += by
}

// firstUsual is before any message was seen: room for great ones.
const firstUsual = 64 << 10

// seen has the usual size follow a message's: at once when it is greater, slowly when it is less.
func (l *lane) seen(size int64) {
	if size < l.usual {
		size = max(size, l.usual-l.usual/128, assumed)
	}
	l.usual = size
}

// release gives room back.
func (l *lane) release(tenant int32, n int, bytes int64) {
	x := l.lines[tenant]
	x.held, x.bytes = x.held-n, x.bytes-bytes
	l.held, l.bytes = l.held-n, l.bytes-bytes
	if x.held == 0 {
		delete(l.lines, tenant)
	}
}

// endpoint is where a message of a tenant goes.
func (x *line) endpoint(j *job) *endpoint {
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

// add queues a message for which there is room.
func (l *lane) add(j *job) {
	x := l.lines[j.Tenant]
	e, p := x.endpoint(j), j.Priority
	if len(e.waiting[p]) == 0 {
		x.turns[p] = append(x.turns[p], e)
	}
	e.waiting[p] = append(e.waiting[p], j)
	e.waits++
	x.waits++
	if !x.turn {
		x.turn = true
		l.turns = append(l.turns, x)
	}
}

// next takes the message whose attempt may begin now, or nil.
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
		if x.turn = x.waits > 0; x.turn {
			l.turns = append(l.turns, x)
		}
		if j != nil {
			l.running++
			return j
		}
	}
	return nil
}

// next takes the message whose attempt may begin, of as many as are left free: of each priority, endpoints in turn.
func (x *line) next(left int) *job {
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

// pop takes the first message that waits for an endpoint, of which there is one.
func (x *line) pop(e *endpoint, p int) *job {
	j := e.waiting[p][0]
	e.waiting[p][0] = nil
	e.waiting[p] = e.waiting[p][1:]
	e.waits--
	x.waits--
	return j
}

// ended gives back the place of an attempt that took so long; 0: nobody was asked.
func (l *lane) ended(j *job, took time.Duration) {
	x := l.lines[j.Tenant]
	e := x.endpoint(j)
	switch {
	case e.took == 0:
		e.took = took
	case took > 0:
		e.took += (took - e.took) / 4
	}
	l.running--
	x.running--
	e.running--
	x.forget(e)
}

// forget drops an endpoint for which nothing is here any more.
func (x *line) forget(e *endpoint) {
	if e.running+e.waits == 0 {
		delete(x.ends, e.name)
	}
}

// mostPutOff is for how long what could be sent is put off at most.
const mostPutOff = 5 * time.Minute

// putOff gives messages times to come back from the database, one after each, so that those of whoever is slow or away
// do not come back again and again, all together.
func putOff(at *time.Time, least, each time.Duration) time.Duration {
	now := time.Now()
	if first := now.Add(least); at.Before(first) {
		*at = first
	}
	*at = at.Add(each)
	return min(at.Sub(now), mostPutOff)
}

// slow is an endpoint whose attempts take so long: of any other the machine may be slow.
const slow = time.Second

// crowded tells for how long a message is to go back, since its endpoint is so slow that others wait for it already for
// as long as they can; 0: it may wait too.
func (l *lane) crowded(j *job) time.Duration {
	e := l.lines[j.Tenant].endpoint(j)
	at := max(e.running, 1)
	if e.name == "" || e.took < slow || time.Duration(e.waits)*e.took < l.soon*time.Duration(at) {
		return 0
	}
	return putOff(&e.back, l.soon, e.took/time.Duration(at))
}

// unasked is for how long a message goes back that nobody could be asked for: each costs the database two changes, and
// there may be many, so at most a thousand of a tenant come back in a second.
func (l *lane) unasked(j *job, wait time.Duration) time.Duration {
	return max(wait, putOff(&l.lines[j.Tenant].back, 0, time.Millisecond))
}

// clear takes all messages that wait.
func (l *lane) clear() (all []*job) {
	for _, x := range l.turns {
		all = append(all, x.take(func(*job) bool { return true })...)
	}
	return all
}

// take takes the first messages of each queue for which that holds.
func (x *line) take(holds func(*job) bool) (all []*job) {
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

// late, called every second, takes the messages whose lease has not enough left for an attempt, and has tenants hold no
// more than is sent in time: what waits in the database instead keeps its place there. The first messages of each queue
// came first, and nearly all leases are equally long.
func (l *lane) late() (all []*job) {
	for _, x := range l.lines {
		late := x.take(func(j *job) bool { return !j.lasts(l.need) })
		all = append(all, late...)
		if len(late) > 0 {
			x.room = max(min(x.room, x.held)/2, min(2*l.Attempts, l.most.held))
		} else {
			x.room = min(x.room+x.room/16+1, l.most.held)
		}
	}
	return all
}
