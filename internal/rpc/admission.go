package rpc

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// Limits of Admission, in bytes of memory that decoded requests take.
const (
	admitBytes       = 32 << 20 // of all tenants; below the engine's own limit, which would refuse after decoding
	admitTenantBytes = admitBytes / 4
	// admitWait is how long a call waits for its turn, unread, before it is refused. A waiting call costs no CPU; a
	// refused one comes back and costs some again, so that callers who retry at once must not be refused at once.
	admitWait = time.Second
	// admitRetry is what the refused are told to wait.
	admitRetry = time.Second
	// smallRequest is the size up to which uncompressed requests need no admission: the engine's is enough, and calls
	// that wait for long, as for locks, must not take room away from others.
	smallRequest = 4 << 10
)

// Admission decides which large requests the server reads and decodes, by the tenant and before it has read
// them: memory in flight is bounded for each tenant and in total. Calls without room wait, first in first out within
// their tenant and in turn between tenants, then are refused with one BUSY. Of those admitted few decode at a time,
// and of one tenant no more than half of them, so that a tenant's large requests leave CPU to the others.
type Admission struct {
	decoding chan struct{} // turns of the process
	patience time.Duration // admitWait, but in tests

	mu    sync.Mutex
	bytes int
	lanes map[int32]*admissionLane
	ring  []*admissionLane // those with waiting calls, the next one first
}

// admissionLane is one tenant's part.
type admissionLane struct {
	decoding chan struct{}
	users    int // calls that refer to it
	bytes    int
	waiting  []*ticket
}

// ticket is one call's part: the zero value is not admitted.
type ticket struct {
	tenant  int32
	lane    *admissionLane // nil: the call is neither admitted nor waits
	bytes   int
	turn    bool          // it holds a turn to decode
	granted chan struct{} // closed when it need not wait any more
}

// NewAdmission registers its metrics if reg is not nil.
func NewAdmission(reg prometheus.Registerer) *Admission {
	turns := max(2, runtime.GOMAXPROCS(0))
	a := &Admission{decoding: make(chan struct{}, turns), patience: admitWait, lanes: make(map[int32]*admissionLane)}
	if reg != nil {
		gauge := func(name, help string, read func() int) prometheus.Collector {
			return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "ledgerd", Subsystem: "admission",
				Name: name, Help: help},
				func() float64 { a.mu.Lock(); defer a.mu.Unlock(); return float64(read()) })
		}
		reg.MustRegister(gauge("bytes", "Bytes of large requests in flight.", func() int { return a.bytes }),
			gauge("waiting_calls", "Large requests that wait for memory. Their bodies are not read yet.", a.waiting))
	}
	return a
}

func (a *Admission) waiting() (n int) {
	for _, l := range a.ring {
		n += len(l.waiting)
	}
	return n
}

// enter admits a call of so many bytes, or of all that its tenant may have if they are more. Returns faults BUSY,
// NOT_RUN.
func (a *Admission) enter(ctx context.Context, t *ticket, bytes int) error {
	t.bytes, t.granted = min(bytes, admitTenantBytes), make(chan struct{})
	a.line(t)
	select {
	case <-t.granted:
		return nil
	default:
	}
	timer := time.NewTimer(a.patience)
	defer timer.Stop()
	select {
	case <-t.granted:
		return nil
	case <-timer.C:
		if a.giveUp(t) {
			return busy()
		}
		return nil
	case <-ctx.Done():
		a.giveUp(t)
		return fault.NotRun.New("the call timed out or was cancelled before the server had memory to read it").Because(ctx.Err())
	}
}

func busy() error {
	return fault.Busy.New("the tenant has reached the server's limit of large requests in flight: retry later").After(admitRetry)
}

// line puts a call at the end of its tenant's line, from which it goes at once if there is room.
func (a *Admission) line(t *ticket) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.lanes[t.tenant]
	if l == nil {
		l = &admissionLane{decoding: make(chan struct{}, cap(a.decoding)/2)}
		a.lanes[t.tenant] = l
	}
	t.lane = l
	l.users++
	if l.waiting = append(l.waiting, t); len(l.waiting) == 1 {
		a.ring = append(a.ring, l)
	}
	a.dispatch()
}

func (l *admissionLane) room(bytes int) bool { return l.bytes+bytes <= admitTenantBytes }
func (a *Admission) room(bytes int) bool     { return a.bytes+bytes <= admitBytes }

func (a *Admission) count(l *admissionLane, bytes int) {
	l.bytes, a.bytes = l.bytes+bytes, a.bytes+bytes
}

// dispatch grants what there is room for, one call of each tenant in turn. Tenants at their own limit are passed over;
// where the total is too small for a call, all behind it wait, or smaller ones would keep it out for ever.
func (a *Admission) dispatch() {
	for passed := 0; passed < len(a.ring); {
		l := a.ring[0]
		t := l.waiting[0]
		if l.room(t.bytes) && !a.room(t.bytes) {
			return
		}
		a.ring = append(a.ring[1:], l)
		if !l.room(t.bytes) {
			passed++
			continue
		}
		passed = 0
		a.count(l, t.bytes)
		close(t.granted)
		if l.waiting = l.waiting[1:]; len(l.waiting) == 0 {
			a.ring = a.ring[:len(a.ring)-1]
		}
	}
}

// giveUp takes a call that waits out of its line. It returns false if the call was admitted meanwhile.
func (a *Admission) giveUp(t *ticket) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := t.lane
	i := slices.Index(l.waiting, t)
	if i < 0 {
		return false
	}
	if l.waiting = slices.Delete(l.waiting, i, i+1); len(l.waiting) == 0 {
		at := slices.Index(a.ring, l)
		a.ring = slices.Delete(a.ring, at, at+1)
	}
	a.drop(t)
	a.dispatch() // those behind it may be smaller
	return true
}

// drop ends what a call has to do with its lane.
func (a *Admission) drop(t *ticket) {
	if t.lane.users--; t.lane.users == 0 {
		delete(a.lanes, t.tenant)
	}
	t.lane = nil
}

// grow counts an admitted call with more bytes, if there is room for them.
func (a *Admission) grow(t *ticket, bytes int) bool {
	bytes = min(bytes, admitTenantBytes)
	a.mu.Lock()
	defer a.mu.Unlock()
	more := bytes - t.bytes
	if more <= 0 {
		return true
	}
	if !t.lane.room(more) || !a.room(more) {
		return false
	}
	t.bytes = bytes
	a.count(t.lane, more)
	return true
}

// decode waits for an admitted call's turn to decode. Returns fault NOT_RUN.
func (a *Admission) decode(ctx context.Context, t *ticket) error {
	for _, turns := range []chan struct{}{t.lane.decoding, a.decoding} {
		select {
		case turns <- struct{}{}:
		case <-ctx.Done():
			if turns == a.decoding {
				<-t.lane.decoding
			}
			return fault.NotRun.New("the call timed out or was cancelled before it was decoded").Because(ctx.Err())
		}
	}
	t.turn = true
	return nil
}

// decoded gives the turn back and counts what the request takes now that it is known, even if it is more than there is
// room for: the engine's admission is next.
func (a *Admission) decoded(t *ticket, bytes int) {
	if t.lane == nil {
		return
	}
	a.yield(t)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.count(t.lane, bytes-t.bytes)
	t.bytes = bytes
	a.dispatch()
}

func (a *Admission) yield(t *ticket) {
	if t.turn {
		t.turn = false
		<-a.decoding
		<-t.lane.decoding
	}
}

// leave gives back whatever a call still has.
func (a *Admission) leave(t *ticket) {
	if t.lane == nil {
		return
	}
	a.yield(t)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.count(t.lane, -t.bytes)
	t.bytes = 0
	a.drop(t)
	a.dispatch()
}

// perCommand is what a command takes besides its bytes, as it is reckoned for the engine.
const perCommand = 512

// footprint is about how much memory a request takes on its way through the engine: each element of its lists may be a
// command.
func footprint(m proto.Message) int {
	commands := 1
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.IsList() {
			commands += v.List().Len()
		}
		return true
	})
	return commands*perCommand + proto.Size(m)
}
