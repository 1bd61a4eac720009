package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// NotifyOptions of RunNotify. Zero values take the defaults.
type NotifyOptions struct {
	Options
	// Callers is the number of concurrent callers, default 256.
	Callers int
	// Backlog is the number of messages enqueued before delivery starts, default 60,000.
	Backlog int
	// Held is how long a snapshot is held open under load, default 2 min.
	Held time.Duration
	// Lease is the lease of messages, default as in the server. A killed process's messages are taken over when it
	// expires.
	Lease time.Duration
}

// MessagesReport is the part of a Report on messages.
type MessagesReport struct {
	Backlog     int
	Held, Lease time.Duration
	Results     []NotifyResult
}

// NotifyResult is the result of one case.
type NotifyResult struct {
	Name, What string
	PerSecond  float64 // messages; 0: not measured
	P50, P95   time.Duration
	Messages   int
	// Lost messages never arrived; Repeated ones were requested more than once; Twice were sent twice although
	// the provider honours keys.
	Lost, Repeated, Twice int
	Note                  string
}

// notifyCase is one case.
type notifyCase struct {
	name, what string
	run        func(context.Context, *notifyBench) (NotifyResult, error)
}

// RunNotify measures messages: the rates of accepting and delivering to a local provider, the pick-up latency,
// the cost of a long-open snapshot, and the effect of a killed process.
func RunNotify(ctx context.Context, o NotifyOptions) (*Report, error) {
	o.Measure, o.Warmup = cmp.Or(o.Measure, 10*time.Second), cmp.Or(o.Warmup, 3*time.Second)
	o.Callers, o.Backlog = cmp.Or(o.Callers, DefaultCallers), cmp.Or(o.Backlog, 60_000)
	o.Held, o.Lease = cmp.Or(o.Held, 2*time.Minute), cmp.Or(o.Lease, send.Lease)
	c, r, err := start(ctx, &o.Options, NotifyDocument)
	if err != nil {
		return nil, err
	}
	defer c.stop()
	r.Callers = o.Callers
	b, err := c.openNotify(ctx, &o)
	if err != nil {
		return nil, err
	}
	defer b.close()
	r.Messages = &MessagesReport{Backlog: o.Backlog, Held: o.Held, Lease: o.Lease}
	for _, x := range notifyCases() {
		backlog := x.name == "enqueue" && fits("burn-down", o.Only) // the backlog for burn-down
		if !backlog && !fits(x.name, o.Only) {
			continue
		}
		result, err := x.run(ctx, b)
		if err == nil {
			result.Name, result.What = x.name, x.what
			c.progress("%s: %s", x.name, result.line())
			err = b.empty(ctx)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", x.name, err)
		}
		r.Messages.Results = append(r.Messages.Results, result)
		if result.Lost > 0 || result.Twice > 0 {
			r.fail("%s: %d messages were lost, %d were sent twice", x.name, result.Lost, result.Twice)
		}
	}
	r.judgeMessages()
	return r.end()
}

func notifyCases() []notifyCase {
	return []notifyCase{
		{"enqueue", "Send, while no worker delivers", enqueue},
		{"burn-down", "the backlog, by one process", burnDown},
		{"steady", "Send and delivery in one process at full speed, at the end of a run as long as held-steady",
			steady},
		{"pickup", "from the call of Send to the provider, 300/s, in one process", pickup},
		{"pickup-other", "the same, delivered by another process", pickupOther},
		{"kill", "two processes deliver, one is killed with SIGKILL", kill},
		{"later-burn-down", "another backlog, after all messages above were sent", laterBurnDown},
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
	return s + fmt.Sprintf(", %d lost, %d requested again, %d sent twice. %s", x.Lost, x.Repeated, x.Twice, x.Note)
}

// judgeMessages compares the results with the targets for 2 cores.
func (r *Report) judgeMessages() {
	results := map[string]NotifyResult{}
	for _, x := range r.Messages.Results {
		results[x.Name] = x
	}
	judge := func(what, want string, measured, reached bool, got string) {
		if measured {
			r.target(what, want, got, reached)
		} else {
			r.unmeasured(what, want)
		}
	}
	for _, name := range []string{"pickup", "pickup-other", "held-pickup"} {
		p95 := results[name].P95
		judge(name+", p95", "< 15 ms", p95 > 0, p95 < 15*time.Millisecond, milliseconds(p95))
	}
	rate := results["burn-down"].PerSecond
	judge("delivered by one process", ">= 10,000/s", rate > 0, rate >= 10_000, thousands(rate)+"/s")
	for _, pair := range [][2]string{{"held-steady", "steady"}, {"held-burn-down", "later-burn-down"}} {
		held, free := results[pair[0]].PerSecond, results[pair[1]].PerSecond
		slower := 100 * (1 - held/free)
		judge(pair[0]+" beside "+pair[1], "< 20 % slower", held > 0 && free > 0, slower < 20,
			fmt.Sprintf("%.0f %% slower", slower))
	}
	for _, name := range []string{"kill", "held-kill"} {
		x := results[name]
		judge(name+": lost, and twice", "0 and 0", x.Messages > 0, x.Lost == 0 && x.Twice == 0,
			fmt.Sprintf("%d and %d", x.Lost, x.Twice))
	}
}

func (r *Report) messageSections() []section {
	m := r.Messages
	rows := [][]string{{"case", "what", "messages", "messages/s", "p50", "p95", "lost", "requested again",
		"sent twice"}}
	for _, x := range m.Results {
		rate, p50, p95 := "", "", ""
		if x.PerSecond > 0 {
			rate = thousands(x.PerSecond)
		}
		if x.P95 > 0 {
			p50, p95 = milliseconds(x.P50), milliseconds(x.P95)
		}
		rows = append(rows, []string{x.Name, x.What, thousands(float64(x.Messages)), rate, p50, p95, fmt.Sprint(x.Lost),
			fmt.Sprint(x.Repeated), fmt.Sprint(x.Twice)})
	}
	return []section{{text: fmt.Sprintf("Load, provider, service and database share the machine. %d callers; "+
		"a backlog of %s; leases of %v; the snapshot is held for %v under load.",
		r.Callers, thousands(float64(m.Backlog)), m.Lease, m.Held)},
		{rows: rows}}
}

var errNotDelivered = errors.New("messages are not delivered")
