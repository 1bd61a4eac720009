package consumertest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// EffectsOnce sends valid messages several times, also with other content under the same id, and every kind of
// poison message.
func EffectsOnce(t *testing.T, start func(t *testing.T) Broker) {
	b := start(t)
	w := NewWorld(t)
	const good = 40
	for i := range good {
		id := fmt.Sprint("m", i)
		body := Pay("first-"+id, "bank", "a", "1")
		b.Send(id, body)
		b.Send(id, body)
	}
	s := w.Serve(w.File(b))
	w.Eventually(30*time.Second, "the valid messages take effect", func() bool {
		return w.Count("select count(*) from inbox_messages where state = 'succeeded' "+
			"and consumer_group = 'billing'") == good
	})
	for i := range good { // resent by a client that makes a new body each time
		b.Send(fmt.Sprint("m", i), Pay(fmt.Sprint("second-m", i), "bank", "a", "1"))
	}
	b.Send("no-json", "{")
	b.Send("no-field", `{"operations": [{"request": {"@type": `+
		`"type.googleapis.com/ledgerd.ledger.v1.TransferRequest", "bizNo": ""}}]}`)
	b.Send("no-account", Pay("no-account", "bank", "nobody", "1"))
	b.Send("no-money", `{"operations": [{"request": `+Pay("with-money", "bank", "a", "1")+`}, {"request": `+
		Pay("no-money", "b", "a", "5")+`}]}`)
	b.Send("no-fence", `{"@type": "type.googleapis.com/ledgerd.idempotency.v1.AbandonRequest", "scope": "s", "key": `+
		`"k", "fence": "7"}`)
	b.Send("empty", "")
	b.Send("binary", "\xff\x00\xfe")
	b.Send("", Pay("no-id", "bank", "a", "1"))
	b.Send(strings.Repeat("x", 300), Pay("long-id", "bank", "a", "1"))
	b.Send("last", `{"operations": [{"request": `+Pay("last-1", "bank", "b", "1")+`}, {"request": `+
		Pay("last-2", "b", "a", "1")+`}]}`)
	const dead = good + 9
	w.Eventually(60*time.Second, "all are settled", func() bool {
		return w.Count("select count(*) from inbox_messages where state in ('succeeded', 'dead') "+
			"and consumer_group = 'billing'") == good+1+dead && b.Left() == 0
	})
	for sql, want := range map[string]string{
		"select count(*)::text from ledger_transfers": fmt.Sprint(good + 2),
		"select count(*)::text from ledger_transfers where biz_no like 'second-%' or biz_no like '%-id' " +
			"or biz_no like '%-money'": "0",
		"select count(*)::text from inbox_messages where state = 'dead' and part like 'differs:%' " +
			"and failure_text like 'MESSAGE_DIFFERS%'": fmt.Sprint(good),
		"select string_agg(message_id || ' ' || attempts, ', ' order by message_id) from inbox_messages " +
			"where state = 'dead' and part = '' and message_id not like 'sha256:%'": "binary 1, empty 1, " +
			"no-account 3, no-fence 3, no-field 1, no-json 1, no-money 1",
		"select count(*)::text from inbox_messages where state = 'dead' and message_id like 'sha256:%' " +
			"and failure_text like '%message id%'": "2",
		"select string_agg(split_part(failure_text, ':', 1), ' ' order by message_id) from inbox_messages where " +
			"message_id in ('no-account', 'no-money', 'no-json')": "ACCOUNT_NOT_FOUND FIELD_INVALID INSUFFICIENT_FUNDS",
	} {
		if got := w.Text(sql); got != want {
			t.Errorf("%s: %s, not %s", sql, got, want)
		}
	}
	// An operator funds the account and requeues the message, which the broker does not redeliver.
	b.Send("money", Pay("money", "bank", "b", "5"))
	if _, err := w.Pool.Exec(t.Context(), `update inbox_messages set state = 'failed', attempts = 0, retry_at = now(),
		requeued_at = now(), finished_at = null
		where message_id = 'no-money'`); err != nil { // as Requeue does
		t.Fatal(err)
	}
	w.Eventually(30*time.Second, "the requeued message takes effect", func() bool {
		return w.Count("select count(*) from ledger_transfers where biz_no in ('with-money', 'no-money')") == 2 ||
			w.requeue("no-money") // its attempt may have preceded the money
	})
	s.Stop()
	w.Eventually(10*time.Second, "all are acknowledged", func() bool { return b.Left() == 0 })
}

// requeue requeues a message if it is dead. It returns false.
func (w *World) requeue(id string) bool {
	_, _ = w.Pool.Exec(w.T.Context(), `update inbox_messages set state = 'failed', attempts = 0, retry_at = now(),
		requeued_at = now(), finished_at = null
		where state = 'dead' and message_id = $1`, id)
	return false
}

// patience is enough for a slow machine: a restarted consumer gets all messages again that it had not acknowledged.
const patience = 3 * time.Minute

// Killed repeatedly kills the consuming process with SIGKILL while messages flow. Each message is sent twice,
// and a third time with other content; every message takes effect once.
func Killed(t *testing.T, start func(t *testing.T) Broker, messages, kills int) {
	b := start(t)
	w := NewWorld(t)
	file := w.File(b)
	p := &process{w: w, binary: build(t), file: file}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for i := range messages {
			id := fmt.Sprint("m", i)
			b.Send(id, Pay("first-"+id, "bank", "a", "0.01"))
			b.Send(id, Pay("first-"+id, "bank", "a", "0.01"))
			b.Send(id, Pay("second-"+id, "bank", "a", "0.01"))
		}
	}()
	succeeded := func() int {
		return w.Count("select count(*) from inbox_messages where state = 'succeeded' and consumer_group = 'billing'")
	}
	busy := 0
	for range kills {
		before := succeeded()
		p.start()
		w.Eventually(patience, "the process consumes",
			func() bool { return succeeded() > before || succeeded() == messages })
		<-time.After(time.Duration(rand.IntN(60)) * time.Millisecond)
		if succeeded() < messages {
			busy++
		}
		p.kill()
	}
	<-sent
	p.start()
	w.Eventually(patience, "all took effect", func() bool { return succeeded() == messages })
	w.Eventually(patience, "all are settled", func() bool {
		return w.Count("select count(*) from inbox_messages where state = 'dead' "+
			"and consumer_group = 'billing'") == messages
	})
	w.Eventually(patience, "all are acknowledged", func() bool { return b.Left() == 0 })
	again := w.Log.Count(`"outcome":"duplicate"`)
	t.Logf("killed %d times, %d of them under load; %d repeated deliveries", kills, busy, again)
	if n := w.Count("select count(*) from ledger_transfers"); n != messages {
		t.Errorf("%d messages had %d effects", messages, n)
	}
	if busy < kills/2 || again == 0 {
		t.Errorf("the test exercised too little: killed under load %d of %d times, %d repeats", busy, kills, again)
	}
	p.kill()
}

func build(t *testing.T) string { return pgtest.Program(t, "github.com/ledgerd/ledgerd/cmd/ledgerd") }

// process is a restartable ledgerd process.
type process struct {
	w            *World
	binary, file string
	cmd          *exec.Cmd
}

func (p *process) start() {
	t := p.w.T
	t.Helper()
	p.cmd = exec.Command(p.binary, "--log-level", "debug", "serve", "--listen", "127.0.0.1:0", "--consume", p.file)
	p.cmd.Env = append(os.Environ(), "DATABASE_URL="+p.w.DB.AppDSN)
	logs, err := p.cmd.StderrPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	listening := make(chan bool, 1)
	go p.follow(logs, listening)
	if !<-listening {
		t.Fatal("the process ended")
	}
}

// follow stores a process's log, and signals when it listens or ends.
func (p *process) follow(logs io.Reader, listening chan<- bool) {
	lines := bufio.NewScanner(logs)
	told := false
	for lines.Scan() {
		_, _ = p.w.Log.Write(append(lines.Bytes(), '\n'))
		var line struct{ Msg string }
		if !told && json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "listening" {
			told = true
			listening <- true
		}
	}
	if !told {
		listening <- false
	}
}

// kill ends the process abruptly, like a power cut.
func (p *process) kill() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		p.cmd = nil
	}
}
