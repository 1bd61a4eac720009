package deliver

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// lane is a channel in this process. A tenant has at most as much of it, of room and of attempts, as is left free: one
// that floods gets half, two a third each, and there is always some for the next. Guarded by Pool.mu.
type lane struct {
	Manner
	channel send.Channel
	sender  send.Sender
	need    time.Duration // of a lease, for an attempt to begin
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
	tenant  int32
	waiting [3][]*job // by priority
	share
	running int
	turn    bool // it is in turns
}

func newLane(c send.Channel, s send.Sender, m Manner, room int, bytes int64, lease time.Duration) *lane {
	return &lane{Manner: m, channel: c, sender: s, need: m.Timeout + lease/12, lines: make(map[int32]*line), behind: make(map[int32]bool),
		most: share{room, bytes}, usual: firstUsual}
}

// reserve takes room for up to n messages of so many bytes each, and tells for how many there is.
func (l *lane) reserve(tenant int32, n int, each int64) int {
	var has share
	if x := l.lines[tenant]; x != nil {
		has = x.share
	}
	// Half of what would be too much, since what is taken is both more held and less free.
	n = min(n, (l.most.held-l.held-has.held+1)/2, int((l.most.bytes-l.bytes-has.bytes+each)/each/2))
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
		x = &line{tenant: tenant}
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

// add queues a message for which there is room.
func (l *lane) add(j *job) {
	x := l.lines[j.Tenant]
	x.waiting[j.Priority] = append(x.waiting[j.Priority], j)
	if !x.turn {
		x.turn = true
		l.turns = append(l.turns, x)
	}
}

// next takes the message whose attempt may begin now, or nil.
func (l *lane) next() *job {
	free := l.Attempts - l.running
	for range len(l.turns) {
		x := l.turns[0]
		l.turns[0] = nil
		l.turns = l.turns[1:]
		if x.running >= free {
			l.turns = append(l.turns, x)
			continue
		}
		j := x.pop()
		if x.turn = x.waits(); x.turn {
			l.turns = append(l.turns, x)
		}
		if j != nil {
			x.running++
			l.running++
			return j
		}
	}
	return nil
}

// ended gives back the place of an attempt.
func (l *lane) ended(j *job) {
	l.running--
	l.lines[j.Tenant].running--
}

func (x *line) pop() *job {
	for p := range x.waiting {
		if w := x.waiting[p]; len(w) > 0 {
			j := w[0]
			w[0] = nil
			x.waiting[p] = w[1:]
			return j
		}
	}
	return nil
}

func (x *line) waits() bool { return len(x.waiting[0])+len(x.waiting[1])+len(x.waiting[2]) > 0 }

// clear takes all messages that wait.
func (l *lane) clear() (all []*job) {
	for _, x := range l.turns {
		for j := x.pop(); j != nil; j = x.pop() {
			all = append(all, j)
		}
		x.turn = false
	}
	l.turns = nil
	return all
}

// late takes the messages whose lease has not enough left for an attempt. The first ones of each queue came first,
// and nearly all leases are equally long.
func (l *lane) late() (all []*job) {
	for _, x := range l.turns {
		for p := range x.waiting {
			for w := x.waiting[p]; len(w) > 0 && !w[0].lasts(l.need); w = x.waiting[p] {
				all = append(all, w[0])
				w[0] = nil
				x.waiting[p] = w[1:]
			}
		}
	}
	return all
}
