package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/client"
	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// process is a process that runs until the test ends or kills it.
type process struct {
	cmd     *exec.Cmd
	address string
}

// start starts a program and waits until its log has its address.
func start(t *testing.T, env []string, program string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(program, args...)}
	p.cmd.Env = append(os.Environ(), env...)
	logs, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	listening := make(chan string, 1)
	go func() {
		for lines := bufio.NewScanner(logs); lines.Scan(); {
			if _, after, ok := strings.Cut(lines.Text(), "listening"); ok {
				_, address, _ := strings.Cut(after, "127.0.0.1:")
				if port := strings.FieldsFunc(address, func(r rune) bool { return r < '0' || r > '9' }); len(port) > 0 {
					listening <- "http://127.0.0.1:" + port[0]
				}
			}
		}
	}()
	select {
	case p.address = <-listening:
	case <-time.After(30 * time.Second):
		t.Fatalf("%s does not listen", program)
	}
	return p
}

// kill ends the process abruptly, like a power cut.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// city is the service and its ledgerd, in processes of their own.
type city struct {
	t        *testing.T
	ledgerd  *client.Client
	program  string
	args     []string
	env      []string
	bookFile string
}

func newCity(t *testing.T) *city {
	db := pgtest.New(t)
	ctx := context.Background()
	pool := pgtest.Pool(t, db.SuperDSN)
	tenant, err := access.EnsureTenant(ctx, pool, "city")
	if err != nil {
		t.Fatal(err)
	}
	key, err := access.Administer(pool).CreateKey(ctx, tenant,
		access.NewKey{Principal: "order-service", Rights: access.Rights{Role: access.Write}})
	if err != nil {
		t.Fatal(err)
	}
	ledgerd := start(t, []string{"DATABASE_URL=" + db.AllDSN},
		pgtest.Program(t, "github.com/ledgerd/ledgerd/cmd/ledgerd"), "serve", "--listen", "127.0.0.1:0")
	c := &city{t: t, ledgerd: client.New(ledgerd.address, client.WithAPIKey(key.Secret)),
		program:  pgtest.Program(t, "github.com/ledgerd/ledgerd/examples/idempotent-service"),
		env:      []string{"LEDGERD_API_KEY=" + key.Secret},
		bookFile: filepath.Join(t.TempDir(), "orders.jsonl")}
	c.args = []string{"-listen", "127.0.0.1:0", "-ledgerd", ledgerd.address, "-orders", c.bookFile, "-lease", "2s"}
	t.Cleanup(c.ledgerd.Close)
	return c
}

func (c *city) service(more ...string) *process {
	c.t.Helper()
	return start(c.t, c.env, c.program, append(append([]string{}, c.args...), more...)...)
}

// order sends one order without the automatic retry of Go's HTTP client.
func (c *city) order(p *process, key, body string) (status int, answer string, replayed bool) {
	web := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	req, err := http.NewRequest(http.MethodPost, p.address+"/orders", struct{ io.Reader }{strings.NewReader(body)})
	if err != nil {
		c.t.Error(err)
		return 0, "", false
	}
	req.Header.Set("Idempotency-Key", key)
	req.Header.Set("X-User", "ann")
	res, err := web.Do(req)
	if err != nil {
		return 0, err.Error(), false
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b), res.Header.Get("Idempotency-Replayed") == "true"
}

// book returns the lines that orders wrote.
func (c *city) book() (lines []string) {
	c.t.Helper()
	b, err := os.ReadFile(c.bookFile)
	if err != nil {
		c.t.Fatal(err)
	}
	for line := range bytes.Lines(b) {
		lines = append(lines, string(line))
	}
	return lines
}

func (c *city) parked() []*idempotencyv1.Work {
	c.t.Helper()
	res, err := c.ledgerd.Idempotency.ListWorks(context.Background(),
		&idempotencyv1.ListWorksRequest{State: idempotencyv1.WorkState_WORK_STATE_PARKED})
	if err != nil {
		c.t.Fatal(err)
	}
	return res.GetWorks()
}

func soon(t *testing.T, what string, is func() bool) {
	t.Helper()
	end, tick := time.After(30*time.Second), time.NewTicker(20*time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-end:
			t.Fatalf("not in time: %s", what)
		case <-tick.C:
		}
	}
}

const pens = `{"goods":"pen","count":3}`

func TestADoubleClickOnTwoCopiesIsOneOrder(t *testing.T) {
	t.Parallel()
	c := newCity(t)
	copies := []*process{c.service("-shipping", "300ms"), c.service("-shipping", "300ms")}
	var wg sync.WaitGroup
	var mu sync.Mutex
	answers, replays := map[string]int{}, 0
	for i := range 20 {
		wg.Go(func() {
			status, body, replayed := c.order(copies[i%2], "click", pens)
			mu.Lock()
			defer mu.Unlock()
			answers[fmt.Sprint(status, " ", body)]++
			if replayed {
				replays++
			}
		})
	}
	wg.Wait()
	if len(answers) != 1 || replays != 19 || len(c.book()) != 1 {
		t.Errorf("%d replays of %v; book %v", replays, answers, c.book())
	}
	if status, _, _ := c.order(copies[0], "click",
		`{"goods":"pen","count":4}`); status != http.StatusUnprocessableEntity {
		t.Errorf("another order under the key: %d", status)
	}
	for _, body := range []string{"rubbish", pens} { // corrected
		c.order(copies[1], "corrected", body)
	}
	if len(c.book()) != 2 {
		t.Errorf("book %v", c.book())
	}
}

func TestShutdownFinishesRunningOrders(t *testing.T) {
	t.Parallel()
	c := newCity(t)
	ending := c.service("-shipping", "2s")
	told := make(chan string, 1)
	go func() {
		status, body, _ := c.order(ending, "k", pens)
		told <- fmt.Sprint(status, " ", body)
	}()
	soon(t, "the order is written", func() bool {
		_, err := os.Stat(c.bookFile)
		return err == nil &&
			len(c.book()) == 1
	})
	if err := ending.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if got := <-told; !strings.HasPrefix(got, "201 ") {
		t.Error(got)
	}
	if status, body, replayed := c.order(c.service(), "k", pens); status != http.StatusCreated || !replayed {
		t.Errorf("afterwards: %d %s, replayed %v", status, body, replayed)
	}
}

func TestAnInterruptedOrderIsParkedAndNeverRepeated(t *testing.T) {
	t.Parallel()
	c := newCity(t)
	dying := c.service("-shipping", "10m")
	go c.order(dying, "k", pens)
	soon(t, "the order is written", func() bool {
		_, err := os.Stat(c.bookFile)
		return err == nil &&
			len(c.book()) == 1
	})
	dying.kill()
	living := c.service()
	status, body := 0, ""
	soon(t, "the dead process's lease expired", func() bool {
		status, body, _ = c.order(living, "k", pens)
		return strings.Contains(body, "outcome-unknown")
	})
	if status != http.StatusConflict || len(c.book()) != 1 {
		t.Errorf("%d %s; book %v", status, body, c.book())
	}
	parked := c.parked()
	if len(parked) != 1 || parked[0].GetKey() != "ann/k" || parked[0].GetAttempt() != 1 {
		t.Fatalf("parked %v", parked)
	}
	// An operator finds the order in the file, and settles the record.
	var written struct{ Order string }
	if err := json.Unmarshal([]byte(c.book()[0]), &written); err != nil ||
		written.Order != fmt.Sprintf("order-%d", parked[0].GetFence()) {
		t.Errorf("the book has %q, %v", c.book()[0], err)
	}
	if _, err := c.ledgerd.Idempotency.ResolveWork(context.Background(),
		&idempotencyv1.ResolveWorkRequest{Scope: "order-service", Key: "ann/k",
			Fence: parked[0].GetFence(), Resolution: idempotencyv1.WorkResolution_WORK_RESOLUTION_DONE,
			Answer: &idempotencyv1.RecordedAnswer{Status: 201, Body: []byte(c.book()[0])}}); err != nil {
		t.Fatal(err)
	}
	if status, body, replayed := c.order(living, "k", pens); status != http.StatusCreated || body != c.book()[0] ||
		!replayed {
		t.Errorf("settled: %d %s, replayed %v", status, body, replayed)
	}
	if len(c.book()) != 1 || len(c.parked()) != 0 {
		t.Errorf("book %v, parked %v", c.book(), c.parked())
	}
}
