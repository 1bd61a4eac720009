package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/ledgerd/ledgerd/internal/bench/load"
)

// sample is the CPU time used so far by everybody.
type sample struct{ client, server, postgres, self, machine, stolen time.Duration }

func (p *phase) sample(client int) sample {
	s := sample{client: cpuOf(client), server: cpuOf(p.server.process.Pid),
		postgres: cpuOfFamily(p.cluster.postgres.Pid()),
		self:     cpuOf(os.Getpid())}
	s.machine, s.stolen = cpuOfMachine()
	return s
}

// run measures a case once and verifies what it left in the database.
func (p *phase) run(ctx context.Context, c *Case) (Round, error) {
	p.runs++
	spec := p.spec(c)
	l := ours
	if c.Kind == load.Baseline {
		l = baseline
		guard := "guard_off"
		if c.Guarded {
			guard = "guard_on"
		}
		if _, err := p.conn.Exec(ctx, sql(guard)); err != nil {
			return Round{}, err
		}
	}
	before, err := p.newest(ctx, l)
	if err != nil {
		return Round{}, err
	}
	forgetPeak(p.server.process.Pid)
	r, marks, err := p.drive(ctx, c, spec)
	p.profiles.Wait() // the server makes one at a time
	if err != nil {
		return Round{}, err
	}
	run := newRun(r, marks)
	run.ServerMemory = peakMemory(p.server.process.Pid)
	if r.Unknown > 0 {
		time.Sleep(2 * time.Second) // what the server still commits must not count for the next run
	}
	p.acknowledged[l] += r.Succeeded
	p.unknown[l] += r.Unknown
	if err := p.verify(ctx, l, before, spec.Run, r, &run); err != nil {
		return Round{}, fmt.Errorf("verify: %w", err)
	}
	return run, nil
}

func (p *phase) spec(c *Case) *load.Spec {
	s := &load.Spec{Kind: c.Kind, Callers: c.Callers, Items: c.Items, Keys: c.Keys, Gather: c.Gather,
		URL: p.server.url, APIKey: p.apiKey, DSN: p.cluster.postgres.DSN("postgres", "bench_"+p.plan.name),
		Tenant: p.tenant,
		Run:    fmt.Sprintf("r%03d", p.runs), Hot: -1, Accounts: p.cluster.options.Active,
		Warmup: p.cluster.options.Warmup, Measure: p.cluster.options.Measure, Patience: patience}
	if c.Everywhere {
		s.Accounts = p.plan.accounts
	}
	if c.Hot {
		s.Hot = p.plan.accounts
	}
	s.Stride = p.plan.accounts / s.Accounts
	return s
}

// drive runs a load process to its end, and looks at everybody's CPU time when its window opens and
// when it closes. Without a case no profile is taken.
func (p *phase) drive(ctx context.Context, c *Case, spec *load.Spec) (r *load.Result, marks [2]sample, err error) {
	input, err := json.Marshal(spec)
	if err != nil {
		return nil, marks, err
	}
	// Pipes of the system, so that nobody copies in between.
	in, toChild, err := os.Pipe()
	if err != nil {
		return nil, marks, err
	}
	defer in.Close()
	out, fromChild, err := os.Pipe()
	if err != nil {
		return nil, marks, errors.Join(err, toChild.Close())
	}
	defer out.Close()
	child, err := startChild(p.cluster.options.Program, []string{"bench-load"}, nil, in, fromChild)
	_ = fromChild.Close() // the child has its own
	if err != nil {
		return nil, marks, errors.Join(err, toChild.Close())
	}
	defer child.stop(time.Second)
	stop := context.AfterFunc(ctx, func() { _ = child.process.Kill() })
	defer stop()
	if _, err = toChild.Write(input); err != nil {
		return nil, marks, errors.Join(err, toChild.Close())
	}
	if err = toChild.Close(); err != nil {
		return nil, marks, err
	}
	r, marks, err = p.follow(ctx, c, child, out)
	switch {
	case ctx.Err() != nil:
		return nil, marks, ctx.Err()
	case errors.Is(err, io.EOF):
		<-child.done
		err = fmt.Errorf("the load process ended: %w", child.died())
	}
	return r, marks, err
}

// follow reads the messages of the load process.
func (p *phase) follow(ctx context.Context, c *Case, child *child,
	out io.Reader) (r *load.Result, marks [2]sample, err error) {
	decode := json.NewDecoder(out)
	for {
		var m load.Message
		if err := decode.Decode(&m); err != nil {
			return nil, marks, err
		}
		switch {
		case m.Error != "":
			return nil, marks, errors.New(m.Error)
		case m.Mark == load.MarkMeasure:
			marks[0] = p.sample(child.process.Pid)
			p.profile(ctx, c)
		case m.Mark == load.MarkMeasured:
			marks[1] = p.sample(child.process.Pid)
		case m.Result != nil:
			return m.Result, marks, nil
		}
	}
}

// profile writes a CPU profile of the server over the measured window, if they are wanted.
func (p *phase) profile(ctx context.Context, c *Case) {
	if p.server.metrics == "" || c == nil || c.Kind == load.Baseline {
		return
	}
	seconds := max(int(p.cluster.options.Measure.Seconds())-1, 1)
	url := fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", p.server.metrics, seconds)
	file := filepath.Join(p.cluster.options.Profiles, p.plan.name+"-"+c.Name+".pprof")
	p.profiles.Go(func() {
		if err := download(ctx, url, file); err != nil {
			p.cluster.progress("profile %s: %v", file, err)
		}
	})
}

func download(ctx context.Context, url, file string) (err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, answer.Body)
	return errors.Join(err, f.Close())
}
