package bench

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// NotifyOptions of RunNotify. Zero values take the defaults.
type NotifyOptions struct {
	Options
	// Callers at a time, default 256.
	Callers int
	// Backlog is how many messages are enqueued before they are delivered, default 60,000.
	Backlog int
	// Held is for how long a snapshot is held open under load, default 2 min.
	Held time.Duration
	// Lease of the processes, default that of the service: what a killed one had is taken over after it.
	Lease time.Duration
}

// NotifyReport is everything that RunNotify found.
type NotifyReport struct {
	StartedAt time.Time
	Took      time.Duration
	Machine   Machine
	Callers   int
	Backlog   int
	Held      time.Duration
	Lease     time.Duration
	Results   []NotifyResult
	Targets   []Target
}

// NotifyResult is one thing that was measured.
type NotifyResult struct {
	Name, What string
	PerSecond  float64 // messages; 0: it is not about that
	P50, P95   time.Duration
	Messages   int
	// Lost never arrived; Repeated were asked for more than once; Twice went out twice although the keys were
	// honoured.
	Lost, Repeated, Twice int
	Note                  string
}

// notifyCase measures one thing.
type notifyCase struct {
	name, what string
	run        func(context.Context, *notifyBench) (NotifyResult, error)
}

func (o *NotifyOptions) notifyDefaults() error {
	if err := o.defaults(); err != nil {
		return err
	}
	if o.Callers == 0 {
		o.Callers = DefaultCallers
	}
	if o.Backlog == 0 {
		o.Backlog = 60_000
	}
	if o.Held == 0 {
		o.Held = 2 * time.Minute
	}
	return nil
}

// RunNotify measures messages: how fast they are accepted and delivered to a provider on this machine, how soon one is
// picked up, what a snapshot that is held open costs, and what a killed process does.
func RunNotify(ctx context.Context, o NotifyOptions) (*NotifyReport, error) {
	if err := o.notifyDefaults(); err != nil {
		return nil, err
	}
	begin := time.Now()
	b, err := openNotifyBench(ctx, &o)
	if err != nil {
		return nil, err
	}
	defer b.close()
	r := &NotifyReport{StartedAt: begin, Callers: o.Callers, Backlog: o.Backlog, Held: o.Held, Lease: b.lease()}
	if r.Machine, err = b.cluster.machine(ctx); err != nil {
		return nil, err
	}
	for _, c := range notifyCases() {
		backlog := c.name == "enqueue" && fits("burn-down", o.Only) // which needs it
		if !backlog && !fits(c.name, o.Only) {
			continue
		}
		x, err := c.run(ctx, b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		x.Name, x.What = c.name, c.what
		r.Results = append(r.Results, x)
		b.cluster.progress("%s: %s", c.name, x.line())
		if err := b.empty(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
	}
	r.target()
	r.Took = time.Since(begin)
	for i := range r.Results {
		if x := &r.Results[i]; x.Lost > 0 || x.Twice > 0 {
			return r, fmt.Errorf("%w: %s: %d messages were lost, %d went out twice", ErrFailed, x.Name, x.Lost, x.Twice)
		}
	}
	return r, nil
}

func notifyCases() []notifyCase {
	return []notifyCase{
		{"enqueue", "Send, with nobody who delivers", enqueue},
		{"burn-down", "the backlog, by one process", burnDown},
		{"steady", "Send and delivery in one process, as fast as they go, at the end of as long a time as below",
			steady},
		{"pickup", "from the call of Send to the provider, 300/s, in one process", pickup},
		{"pickup-other", "the same, delivered by another process", pickupOther},
		{"kill", "two processes deliver, one is killed with SIGKILL", kill},
		{"later-burn-down", "another backlog, when all that is above has gone out", laterBurnDown},
		{"held-steady", "steady, at the end of a snapshot held open", heldSteady},
		{"held-pickup", "pickup, with the snapshot still held", pickup},
		{"held-burn-down", "later-burn-down, with the snapshot still held", laterBurnDown},
		{"held-kill", "kill, with the snapshot still held", kill},
	}
}

func (x *NotifyResult) line() string {
	s := fmt.Sprintf("%d messages", x.Messages)
	if x.PerSecond > 0 {
		s += fmt.Sprintf(", %.0f/s", x.PerSecond)
	}
	if x.P95 > 0 {
		s += fmt.Sprintf(", p50 %s, p95 %s", milliseconds(x.P50), milliseconds(x.P95))
	}
	return s + fmt.Sprintf(", %d lost, %d asked for again, %d twice. %s", x.Lost, x.Repeated, x.Twice, x.Note)
}

func (r *NotifyReport) find(name string) *NotifyResult {
	for i := range r.Results {
		if r.Results[i].Name == name {
			return &r.Results[i]
		}
	}
	return &NotifyResult{}
}

// target holds the results against what is to be reached on 2 cores.
func (r *NotifyReport) target() {
	add := func(what, want string, measured, reached bool, got string) {
		r.Targets = append(r.Targets, Target{What: what, Want: want, Got: got, Reached: reached, Measured: measured})
	}
	for _, name := range []string{"pickup", "pickup-other", "held-pickup"} {
		x := r.find(name)
		add(name+", p95", "< 15 ms", x.P95 > 0, x.P95 < 15*time.Millisecond, milliseconds(x.P95))
	}
	rate := r.find("burn-down").PerSecond
	add("delivered by one process", ">= 10,000/s", rate > 0, rate >= 10_000, thousands(rate)+"/s")
	for _, pair := range [][2]string{{"held-steady", "steady"}, {"held-burn-down", "later-burn-down"}} {
		name, without := pair[0], pair[1]
		free, held := r.find(without).PerSecond, r.find(name).PerSecond
		if free == 0 || held == 0 {
			add(name+" beside "+without, "< 20 % slower", false, false, "")
			continue
		}
		slower := 100 * (1 - held/free)
		add(name+" beside "+without, "< 20 % slower", true, slower < 20, fmt.Sprintf("%.0f %% slower", slower))
	}
	for _, name := range []string{"kill", "held-kill"} {
		x := r.find(name)
		add(name+": lost, and twice", "0 and 0", x.Messages > 0, x.Lost == 0 && x.Twice == 0,
			fmt.Sprintf("%d and %d", x.Lost, x.Twice))
	}
}

// Missed counts the targets that were measured and not reached.
func (r *NotifyReport) Missed() (missed int) {
	for _, t := range r.Targets {
		if t.Measured && !t.Reached {
			missed++
		}
	}
	return missed
}

var errNotDelivered = errors.New("messages are not delivered")
