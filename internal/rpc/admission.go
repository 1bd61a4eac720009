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

// Limits of Admission, in bytes of memory of decoded requests.
const (
	admitBytes       = 32 << 20 // of all tenants; less than the engine's limit, which refuses only after decoding
	admitTenantBytes = admitBytes / 4
	// admitWait is how long a call waits for memory, unread, before it is refused. A waiting call costs no CPU. A
	// refused call is retried and costs CPU again, so callers that retry immediately must not be refused immediately.
	admitWait = time.Second
	// admitRetry is the RetryInfo of refused calls.
	admitRetry = time.Second
	// smallRequest is the size up to which uncompressed requests need no admission: the engine's limit is enough, and
	// calls that wait long, such as for locks, must not occupy the memory of others.
	smallRequest = 4 << 10
)

// Admission bounds the memory of large requests in flight, by tenant and in total. It decides before a request is read.
// Calls without room wait, first in first out within their tenant and round robin between tenants; after admitWait they
// are refused with BUSY. It also bounds concurrent decoding. One tenant gets at most half of these slots, so that its
// large requests leave CPU to other tenants. Reads uses it for responses,
// generated ids, read connections and streams.
type Admission struct {
	total    int           // of all tenants
	share    int           // of one tenant, or of one principal
	of       string        // what total and share count, for messages: such as bytes of large requests, or reads
	decoding chan struct{} // slots of the process
	maxWait  time.Duration

	writeTimeout time.Duration // writeTimeout, except in tests

	mu    sync.Mutex
	used  int
	lanes map[laneKey]*admissionLane
	ring  []*admissionLane // lanes with waiting calls, the next one first
}

// laneKey is a tenant, or one principal of a tenant.
type laneKey struct {
	tenant    int32
	principal string // "": the tenant
}

// admissionLane is the state of one tenant, or of one principal.
type admissionLane struct {
	decoding chan struct{} // slots of the tenant
	users    int           // calls that refer to the lane
	used     int
	waiting  []*admissionCall
}

// admissionCall is the state of one call, admitted or waiting. The zero value is not admitted.
type admissionCall struct {
	tenant    int32
	principal string         // "": the lane of the whole tenant
	lane      *admissionLane // nil: neither admitted nor waiting
	size      int
	turn      bool          // holds a slot to decode
	granted   chan struct{} // closed when the call is admitted
}

func (c *admissionCall) key() laneKey { return laneKey{c.tenant, c.principal} }

// NewAdmission also registers metrics if reg is not nil.
func NewAdmission(reg prometheus.Registerer) *Admission {
	a := newAdmission(admitBytes, admitTenantBytes, "bytes of large requests in flight")
	a.gauge(reg, "bytes", "Bytes of large requests in flight.", func() int { return a.used })
	a.gauge(reg, "waiting_calls", "Large requests that wait for memory. Their bodies are not read yet.", a.waiting)
	return a
}

func newAdmission(total, share int, of string) *Admission {
	return &Admission{total: total, share: share, of: of, maxWait: admitWait, writeTimeout: writeTimeout,
		lanes:    make(map[laneKey]*admissionLane),
		decoding: make(chan struct{}, max(2, runtime.GOMAXPROCS(0)))}
}

func (a *Admission) gauge(reg prometheus.Registerer, name, help string, read func() int) {
	if reg != nil {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "ledgerd", Subsystem: "admission",
			Name: name, Help: help}, func() float64 { a.mu.Lock(); defer a.mu.Unlock(); return float64(read()) }))
	}
}

func (a *Admission) waiting() (n int) {
	for _, l := range a.ring {
		n += len(l.waiting)
	}
	return n
}

// enter waits until a call of this size is admitted. A size above the tenant's limit counts as the limit. Returns
// faults BUSY, NOT_RUN.
func (a *Admission) enter(ctx context.Context, c *admissionCall, bytes int) error {
	c.size, c.granted = min(bytes, a.share), make(chan struct{})
	a.enqueue(c)
	select {
	case <-c.granted:
		return nil
	default:
	}
	timer := time.NewTimer(a.maxWait)
	defer timer.Stop()
	select {
	case <-c.granted:
		return nil
	case <-timer.C:
		full := a.busy(c, c.size)
		if a.dequeue(c) {
			return full
		}
		return nil
	case <-ctx.Done():
		if !a.dequeue(c) { // admitted meanwhile
			a.release(c)
		}
		return fault.NotRun.New("the call timed out or was cancelled before the server admitted it").Because(ctx.Err())
	}
}

// busy returns the refusal of a call that waits for more bytes. It says what is full: the caller's share or the server.
func (a *Admission) busy(c *admissionCall, more int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.full(c, more)
}

func (a *Admission) full(c *admissionCall, more int) error {
	whose, limit := "tenant has reached its share", a.share
	switch {
	case c.lane != nil && a.roomIn(c.lane, more):
		whose, limit = "server has reached its limit", a.total
	case c.principal != "":
		whose = "principal has reached its share"
	}
	return fault.Busy.New("the %s of %d %s: retry later", whose, limit, a.of).After(admitRetry)
}

// enqueue appends a call to its tenant's queue, and admits it at once if there is room.
func (a *Admission) enqueue(c *admissionCall) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.lanes[c.key()]
	if l == nil {
		l = &admissionLane{decoding: make(chan struct{}, cap(a.decoding)/2)}
		a.lanes[c.key()] = l
	}
	c.lane = l
	l.users++
	if l.waiting = append(l.waiting, c); len(l.waiting) == 1 {
		a.ring = append(a.ring, l)
	}
	a.dispatch()
}

func (a *Admission) roomIn(l *admissionLane, bytes int) bool { return l.used+bytes <= a.share }
func (a *Admission) room(bytes int) bool                     { return a.used+bytes <= a.total }

func (a *Admission) count(l *admissionLane, bytes int) {
	l.used, a.used = l.used+bytes, a.used+bytes
}

// dispatch admits waiting calls while there is room, one call of each tenant in turn. It skips tenants at their own
// limit. A call for which the total has no room blocks all others: otherwise small calls would starve it.
func (a *Admission) dispatch() {
	for passed := 0; passed < len(a.ring); {
		l := a.ring[0]
		c := l.waiting[0]
		if a.roomIn(l, c.size) && !a.room(c.size) {
			return
		}
		a.ring = append(a.ring[1:], l)
		if !a.roomIn(l, c.size) {
			passed++
			continue
		}
		passed = 0
		a.count(l, c.size)
		close(c.granted)
		if l.waiting = l.waiting[1:]; len(l.waiting) == 0 {
			a.ring = a.ring[:len(a.ring)-1]
		}
	}
}

// dequeue removes a waiting call from its queue. It returns false if the call was admitted meanwhile.
func (a *Admission) dequeue(c *admissionCall) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := c.lane
	i := slices.Index(l.waiting, c)
	if i < 0 {
		return false
	}
	if l.waiting = slices.Delete(l.waiting, i, i+1); len(l.waiting) == 0 {
		at := slices.Index(a.ring, l)
		a.ring = slices.Delete(a.ring, at, at+1)
	}
	a.detach(c)
	a.dispatch() // the next calls may be smaller
	return true
}

// detach drops the reference of a call to its lane.
func (a *Admission) detach(c *admissionCall) {
	if c.lane.users--; c.lane.users == 0 {
		delete(a.lanes, c.key())
	}
	c.lane = nil
}

// grow raises the size of an admitted call, if there is room.
func (a *Admission) grow(c *admissionCall, bytes int) bool {
	bytes = min(bytes, a.share)
	a.mu.Lock()
	defer a.mu.Unlock()
	more := bytes - c.size
	if more <= 0 {
		return true
	}
	if !a.roomIn(c.lane, more) || !a.room(more) {
		return false
	}
	c.size = bytes
	a.count(c.lane, more)
	return true
}

// decode waits for a slot to decode. Returns fault NOT_RUN.
func (a *Admission) decode(ctx context.Context, c *admissionCall) error {
	for _, turns := range []chan struct{}{c.lane.decoding, a.decoding} {
		select {
		case turns <- struct{}{}:
		case <-ctx.Done():
			if turns == a.decoding {
				<-c.lane.decoding
			}
			return fault.NotRun.New("the call timed out or was cancelled before it was decoded").Because(ctx.Err())
		}
	}
	c.turn = true
	return nil
}

// decoded releases the slot and replaces the estimated size by the actual one. A call that is larger than estimated
// needs room, unless it is the only call of its tenant, which may exceed the share. Returns fault BUSY.
func (a *Admission) decoded(c *admissionCall, bytes int) error {
	if c.lane == nil {
		return nil
	}
	a.releaseTurn(c)
	a.mu.Lock()
	defer a.mu.Unlock()
	more := bytes - c.size
	alone := c.lane.used == c.size && a.room(min(bytes, a.share)-c.size)
	if more > 0 && !alone && !(a.roomIn(c.lane, more) && a.room(more)) {
		return a.full(c, more)
	}
	a.count(c.lane, more)
	c.size = bytes
	a.dispatch()
	return nil
}

func (a *Admission) releaseTurn(c *admissionCall) {
	if c.turn {
		c.turn = false
		<-a.decoding
		<-c.lane.decoding
	}
}

// release frees the slot and the memory of a call. It is idempotent.
func (a *Admission) release(c *admissionCall) {
	if c.lane == nil {
		return
	}
	a.releaseTurn(c)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.count(c.lane, -c.size)
	c.size = 0
	a.detach(c)
	a.dispatch()
}

// perCommand is the estimated memory of a command besides its bytes. The engine gets the same estimate.
const perCommand = 512

// footprint estimates the memory of a request in the engine: each element of its lists may be a command.
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
