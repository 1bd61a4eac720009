package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/ledgerd/ledgerd/internal/bench/load"
)

// sample is the CPU time used so far, by process.
type sample struct{ client, server, postgres, self, machine, stolen time.Duration }

// sample reads the CPU time. The client is a load process; 0: there is none.
func (d *database) sample(client int) sample {
	s := sample{client: cpuOf(client), server: cpuOf(d.server.process.Pid), postgres: cpuOfFamily(d.postgres.Pid()),
		self: cpuOf(os.Getpid())}
	s.machine, s.stolen = cpuOfMachine()
	return s
}

// run measures a case once and verifies its rows in the database.
func (p *phase) run(ctx context.Context, c *Case) (Round, error) {
	p.runs++
	spec := p.spec(c)
	l := ours
	policies := "policies_on"
	if c.Open {
		policies = "policies_off"
	}
	if _, err := p.conn.Exec(ctx, sql(policies)); err != nil {
		return Round{}, err
	}
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
	var small *load.Result
	var smallErr error
	var beside sync.WaitGroup
	if c.Beside > 0 {
		beside.Go(func() { small, _, smallErr = p.drive(ctx, p.smallSpec(spec, c.Beside), func() {}) })
	}
	r, marks, err := p.drive(ctx, spec, func() { p.profile(ctx, c) })
	beside.Wait()
	p.profiles.Wait() // the server writes one profile at a time
	if err = errors.Join(err, smallErr); err != nil {
		return Round{}, err
	}
	run := newRun(r, marks)
	run.ServerMemory = peakMemory(p.server.process.Pid)
	if small != nil {
		run.besides(small)
		r.Refused, r.Measured = 0, max(r.Measured, 1) // refusals are expected, even of all calls
	}
	if r.Unknown > 0 {
		load.Pause(ctx, 2*time.Second) // let commits finish that would count towards the next run
	}
	p.acknowledged[l] += r.Succeeded
	p.unknown[l] += r.Unknown
	if err := p.verify(ctx, l, before, spec.Run, r, &run); err != nil {
		return Round{}, fmt.Errorf("verify: %w", err)
	}
	return run, nil
}

func (p *phase) spec(c *Case) *load.Spec {
	s := &load.Spec{Kind: c.Kind, Callers: c.Callers, Items: c.Items, Keys: c.Keys, Gather: c.Gather, Obey: c.Obey,
		URL: p.server.url, APIKey: p.apiKey, DSN: p.superDSN(), Tenant: p.tenant, Run: fmt.Sprintf("r%03d", p.runs),
		Hot: -1, Accounts: p.options.Active, Warmup: p.options.Warmup, Measure: p.options.Measure, Patience: patience}
	if c.Everywhere {
		s.Accounts = p.plan.accounts
	}
	if c.Hot {
		s.Hot = p.plan.accounts
	}
	s.Stride = p.plan.accounts / s.Accounts
	return s
}

// smallSpec is the load of the small tenant beside that of the large one: single transfers.
func (p *phase) smallSpec(large *load.Spec, callers int) *load.Spec {
	s := *large
	s.APIKey, s.Callers, s.Items, s.Accounts, s.Stride = p.smallKey, callers, 0, smallAccounts, 1
	return &s
}

// drive runs a load process to its end and samples CPU time when its window opens and closes. It calls begun when the
// window has opened.
func (d *database) drive(ctx context.Context, spec *load.Spec,
	begun func()) (r *load.Result, marks [2]sample, err error) {
	input, err := json.Marshal(spec)
	if err != nil {
		return nil, marks, err
	}
	out, fromChild, err := os.Pipe() // of the OS, so that no goroutine copies in between
	if err != nil {
		return nil, marks, err
	}
	defer out.Close()
	child, err := startChild(d.options.Program, []string{"bench-load"}, nil, bytes.NewReader(input), fromChild)
	_ = fromChild.Close() // the child has its own descriptor
	if err != nil {
		return nil, marks, err
	}
	defer child.stop(time.Second)
	stop := context.AfterFunc(ctx, func() { _ = child.process.Kill() })
	defer stop()
	r, marks, err = d.follow(child, out, begun)
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
func (d *database) follow(child *child, out io.Reader,
	begun func()) (r *load.Result, marks [2]sample, err error) {
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
			marks[0] = d.sample(child.process.Pid)
			begun()
		case m.Mark == load.MarkMeasured:
			marks[1] = d.sample(child.process.Pid)
		case m.Result != nil:
			return m.Result, marks, nil
		}
	}
}

// profile writes a CPU profile of the server over the measured window, if requested.
func (p *phase) profile(ctx context.Context, c *Case) {
	if p.server.metrics == "" || c.Kind == load.Baseline {
		return
	}
	seconds := max(int(p.options.Measure.Seconds())-1, 1)
	url := fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", p.server.metrics, seconds)
	file := filepath.Join(p.options.Profiles, p.plan.name+"-"+c.Name+".pprof")
	p.profiles.Go(func() {
		if err := download(ctx, url, file); err != nil {
			p.progress("profile %s: %v", file, err)
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
