package ids_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/ids"
)

// Environment variables of a child: the database, and the amplitude of its clock's jumps or one of the modes
// below.
const (
	childDSN   = "LEDGERD_TEST_IDS_DSN"
	childClock = "LEDGERD_TEST_IDS_CLOCK"
)

const (
	frozen = "frozen" // stops while the process is suspended, like the clocks of a sleeping machine
	fast   = "fast"   // runs at double speed, so the next holder finds the clock set back
)

func childTicks() ids.Ticks {
	start := time.Now()
	switch os.Getenv(childClock) {
	case frozen:
		return func() time.Duration { // three times the CPU time, to keep the test short
			var used syscall.Rusage
			check(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
			return 3 * time.Duration(used.Utime.Nano()+used.Stime.Nano())
		}
	case fast:
		return func() time.Duration { return 2 * time.Since(start) }
	}
	jitter, err := time.ParseDuration(os.Getenv(childClock))
	check(err)
	return func() time.Duration { return time.Since(start) + rand.N(2*jitter+1) - jitter }
}

// childTerm is short, so that worker numbers become free within a test.
const childTerm = 300 * time.Millisecond

// child generates ids until it is killed and writes each immediately, as 8 bytes. The pipe keeps them after its
// death.
func child() {
	pool, err := pgxpool.New(context.Background(), os.Getenv(childDSN))
	check(err)
	g := ids.New(ids.Options{Pool: pool, Holder: fmt.Sprint("child ", os.Getpid()), Term: childTerm,
		Ticks: childTicks()})
	go func() {
		for range time.Tick(childTerm / 6) {
			_ = g.Renew(context.Background()) // otherwise ids end at the mark
		}
	}()
	for i := 0; ; i++ {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		made, err := g.Next(ctx, []int{1, 7, 40, 200, 1, 2, 9000}[i%7])
		cancel()
		if fault.Of(err) != nil {
			continue
		}
		check(err)
		b := make([]byte, 0, 8*len(made))
		for _, id := range made {
			b = binary.BigEndian.AppendUint64(b, uint64(id))
		}
		_, err = os.Stdout.Write(b)
		check(err)
		<-time.After(rand.N(10 * time.Millisecond))
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// process is a child with its output.
type process struct {
	cmd  *exec.Cmd
	file string
}

func (b *bench) process(clock string) *process {
	b.t.Helper()
	p := &process{file: filepath.Join(b.t.TempDir(), "ids")}
	out, err := os.Create(p.file)
	if err != nil {
		b.t.Fatal(err)
	}
	defer out.Close()
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), childDSN+"="+b.db.AppDSN, childClock+"="+clock)
	p.cmd.Stdout, p.cmd.Stderr = out, os.Stderr
	if err := p.cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { p.kill(b.t) })
	return p
}

// kill ends the process abruptly, like a power cut.
func (p *process) kill(t testing.TB) {
	if p.cmd.ProcessState != nil {
		return
	}
	_ = p.cmd.Process.Kill()
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the child ended by itself: %v", err)
	}
}

// size is the number of bytes written.
func (p *process) size(t testing.TB) int64 {
	t.Helper()
	info, err := os.Stat(p.file)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// ids are the complete ids written.
func (p *process) ids(t testing.TB) (made []ids.ID) {
	t.Helper()
	f, err := os.Open(p.file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [8]byte
	for in := bufio.NewReader(f); ; {
		_, err := io.ReadFull(in, b[:])
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return made
		}
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, ids.ID(binary.BigEndian.Uint64(b[:])))
	}
}

// TestKilledProcessesRepeatNoID repeatedly kills processes that share three worker numbers. Their clocks jump,
// freeze, or run ahead, so that the next holder's clock is behind.
func TestKilledProcessesRepeatNoID(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.only(3)
	running := []*process{b.process(fast), b.process("20ms")}
	all := append([]*process(nil), running...)
	const least, patience = 8 * time.Second, time.Minute
	begun, kills := time.Now(), 0
	for ; time.Since(begun) < least || time.Since(begun) < patience && !enough(t, all, kills); kills++ {
		<-time.After(100*time.Millisecond + rand.N(300*time.Millisecond))
		n := rand.IntN(len(running))
		running[n].kill(t)
		running[n] = b.process([]string{fast, "0s", "250ms", frozen, fast, "20ms"}[kills%6])
		all = append(all, running[n])
	}
	b.judge(all, kills)
}

// enough reports whether the test has exercised enough kills and ids to reveal a fault.
func enough(t testing.TB, all []*process, kills int) bool {
	busy, bytes := 0, int64(0)
	for _, p := range all {
		if size := p.size(t); size > 0 {
			busy++
			bytes += size
		}
	}
	return kills >= 8 && busy >= 5 && bytes >= 8*20_000
}

// judge checks the ids of all processes together.
func (b *bench) judge(all []*process, kills int) {
	b.t.Helper()
	var lists [][]ids.ID
	workers, busy, n := map[int]int{}, 0, 0
	for _, p := range all {
		p.kill(b.t)
		made := p.ids(b.t)
		growing(b.t, made)
		if len(made) > 0 {
			busy++
			workers[made[0].Worker()]++
		}
		n += len(made)
		lists = append(lists, made)
	}
	unique(b.t, lists...)
	b.t.Logf("%d kills, %d of %d processes made %d ids with %d numbers", kills, busy, len(all), n, len(workers))
	if !enough(b.t, all, kills) || len(workers) < 2 {
		b.t.Errorf("the test exercised too little: %d kills, %d processes that made ids, numbers %v, %d ids",
			kills, busy,
			workers, n)
	}
}

// TestResumedProcessStopsAtItsMark suspends a process for longer than its lease while
// another one takes over the only worker number.
func TestResumedProcessStopsAtItsMark(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.only(1)
	p := b.process(frozen)
	soon(t, "the child makes ids", func() bool { return len(p.ids(t)) > 100 })
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var mark time.Time
	g := b.generator(ids.Options{}) // a long term: it keeps the number from then on
	var made []ids.ID
	soon(t, "its lease expired", func() bool {
		// each time: a renewal that was under way may still commit
		b.read("select high_water_at from ids_workers where worker = 0", &mark)
		some, err := g.Next(t.Context(), 1)
		made = append(made, some...)
		return err == nil
	})
	stopped := len(p.ids(t))
	made = append(made, b.next(g, 20_000)...)
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	written, still := int64(0), 0
	soon(t, "it resumes and reaches its mark", func() bool {
		if err := g.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		made = append(made, b.next(g, 10)...)
		if now := p.size(t); now != written {
			written, still = now, 0
		}
		still++
		return written > 8*int64(stopped) && still > 50
	})
	p.kill(t)
	woken := p.ids(t)
	growing(t, woken)
	growing(t, made)
	unique(t, woken, made)
	t.Logf("%d ids before the suspension, %d after it", stopped, len(woken)-stopped)
	if last := woken[len(woken)-1]; !last.Time().Before(mark) || made[0].Time().Before(mark) {
		t.Errorf("mark %v: the old holder reached %v, the next one began at %v", mark, last.Time(), made[0].Time())
	}
}
