package crash_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1/batchv1connect"
	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	"github.com/ledgerd/ledgerd/internal/notify/emailtest"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// gateway accepts text messages over an unreliable network: sometimes the connection is cut before it accepts
// one, or after. It deduplicates by key. sent counts the messages sent, by recipient.
type gateway struct {
	*httptest.Server
	mu   sync.Mutex
	keys map[string]bool
	sent map[string]int
	cuts int
}

func newGateway(t *testing.T) *gateway {
	g := &gateway{keys: map[string]bool{}, sent: map[string]int{}}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var m struct{ To string }
		if err != nil || json.Unmarshal(body, &m) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		luck := rand.IntN(100)
		if luck < 4 {
			g.cut(w)
			return
		}
		g.mu.Lock()
		if key := r.Header.Get("Idempotency-Key"); !g.keys[key] {
			g.keys[key] = true
			g.sent[m.To]++
		}
		g.mu.Unlock()
		if luck < 8 {
			g.cut(w)
		}
	}))
	t.Cleanup(g.Close)
	return g
}

func (g *gateway) cut(w http.ResponseWriter) {
	g.mu.Lock()
	g.cuts++
	g.mu.Unlock()
	c, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		_ = c.Close()
	}
}

// order is a transfer with its text message and e-mail. For some orders the e-mail must not be sent twice,
// whatever happens.
type order struct {
	attempt
	number, address string
	once            bool
	execute         *batchv1.ExecuteRequest
}

func newOrder(n, i int) *order {
	name := fmt.Sprintf("order-%d-%d", n, i)
	from := rand.IntN(users)
	o := &order{attempt: attempt{key: "key-" + name, request: transfer(name, user(from), user((from+1)%users), "0.01")},
		number: fmt.Sprintf("+86138%02d%06d", n, i), address: name + "@customer.example", once: i%4 == 0,
		execute: &batchv1.ExecuteRequest{}}
	onUnknown := notifyv1.OnUnknown_ON_UNKNOWN_RESEND
	if o.once {
		onUnknown = notifyv1.OnUnknown_ON_UNKNOWN_PARK
	}
	message := func(channel notifyv1.Channel, to string, onUnknown notifyv1.OnUnknown) *notifyv1.SendRequest {
		return &notifyv1.SendRequest{Channel: channel, Recipient: to, OnUnknown: onUnknown, MaxAttempts: 50,
			BusinessType: "order.paid",
			Says: &notifyv1.SendRequest_Content{Content: &notifyv1.Content{Subject: "Paid", Text: name +
				" is paid."}}}
	}
	for _, m := range []proto.Message{o.request,
		message(notifyv1.Channel_CHANNEL_SMS, o.number, notifyv1.OnUnknown_ON_UNKNOWN_RESEND),
		message(notifyv1.Channel_CHANNEL_EMAIL, o.address, onUnknown)} {
		packed, err := anypb.New(m)
		if err != nil {
			panic(err)
		}
		o.execute.Operations = append(o.execute.Operations, &batchv1.Operation{Request: packed})
	}
	return o
}

// place tries once, on any server.
func (w *world) place(o *order) {
	ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), keyName{}, o.key), 3*time.Second)
	defer cancel()
	_, err := batchv1connect.NewBatchServiceClient(http.DefaultClient, w.url(rand.IntN(len(w.servers))),
		w.auth()).Execute(ctx, o.execute)
	switch {
	case err == nil:
		o.transfer = 1
	case connect.CodeOf(err) == connect.CodeFailedPrecondition:
		o.refused = true
	case connect.CodeOf(err) == connect.CodeInvalidArgument:
		w.t.Error(err)
		o.refused = true
	}
}

// TestATransferAndItsMessagesArriveOnceDespiteKills kills both servers, Postgres and an SMTP server while
// connections to the SMS provider are cut.
func TestATransferAndItsMessagesArriveOnceDespiteKills(t *testing.T) {
	t.Parallel()
	mail, spare, sms := emailtest.Start(t, emailtest.Options{Once: true}),
		emailtest.Start(t, emailtest.Options{Once: true}), newGateway(t)
	w := &world{t: t, db: pgtest.NewDurable(t), args: sendingArgs(t, mail, spare, sms)}
	w.begin()
	stop := make(chan struct{})
	var load sync.WaitGroup
	done := make([][]*order, 4)
	for n := range done {
		load.Go(func() { done[n] = w.orders(n, stop) })
	}
	mails := 0
	load.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(500+rand.IntN(1500)) * time.Millisecond):
			}
			mail.Restart()
			mails++
		}
	})
	kills := w.killAtRandom(killFor)
	close(stop)
	load.Wait()
	kills["smtp"] = mails
	var all []*order
	for _, d := range done {
		for _, o := range d {
			for end := time.Now().Add(patience); !o.definite() && time.Now().Before(end); {
				w.place(o)
			}
			all = append(all, o)
		}
	}
	w.delivered()
	w.judgeOrders(all, kills, sms, mail, spare)
}

// sendingArgs are the arguments of a server that sends messages.
func sendingArgs(t *testing.T, mail, spare *emailtest.Server, sms *gateway) []string {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{"master": strings.Repeat("A", 43) + "=", "notify.yaml": fmt.Sprintf(`
email:
  - {kind: smtp, name: main, host: %s, port: %d, tls: none, from: no-reply@shop.example}
  - {kind: smtp, name: spare, host: %s, port: %d, tls: none, from: no-reply@shop.example}
sms:
  - {kind: http, name: gateway, url: '%s', key_header: Idempotency-Key, json: {to: '{recipient}', say: '{text}'},
     allow_http: true}
`, mail.Host, mail.Port, spare.Host, spare.Port, sms.URL)}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return []string{"--secrets-file", filepath.Join(dir, "master"), "--notify", filepath.Join(dir, "notify.yaml")}
}

// orders places one order after the other until stop, retrying each until its outcome is known.
func (w *world) orders(n int, stop <-chan struct{}) (all []*order) {
	for i := 0; ; i++ {
		o := newOrder(n, i)
		all = append(all, o)
		for !o.definite() {
			select {
			case <-stop:
				return all
			default:
			}
			w.place(o)
		}
		w.decided.Add(1)
	}
}

// delivered waits until the queue is empty. Leases of killed servers last for a minute.
func (w *world) delivered() {
	pool := pgtest.Pool(w.t, w.db.SuperDSN)
	open := 0
	for end := time.Now().Add(4 * time.Minute); time.Now().Before(end); {
		if err := pool.QueryRow(context.Background(),
			"select count(*), pg_sleep(0.2)::text from notify_queue where due_at is not null").Scan(&open,
			new(string)); err != nil {
			w.t.Fatal(err)
		}
		if open == 0 {
			return
		}
	}
	w.t.Errorf("%d messages are still to be sent", open)
}

func (w *world) judgeOrders(all []*order, kills map[string]int, sms *gateway, servers ...*emailtest.Server) {
	pool := pgtest.Pool(w.t, w.db.SuperDSN)
	count := func(query string, args ...any) (n int) {
		if err := pool.QueryRow(context.Background(), query, args...).Scan(&n); err != nil {
			w.t.Fatal(err)
		}
		return n
	}
	arrived := map[string]int{}
	for _, s := range servers {
		for _, m := range s.Messages() {
			arrived[m.To]++
		}
	}
	sms.mu.Lock()
	defer sms.mu.Unlock()
	placed, unknown := 0, 0
	for _, o := range all {
		if !o.definite() {
			w.t.Errorf("%s has no definite answer", o.key)
		}
		want := 0
		if o.transfer != 0 {
			want = 1
			placed++
		}
		if n := count("select count(*) from ledger_transfers where biz_no = $1", o.request.GetBizNo()); n != want {
			w.t.Errorf("%s: %d transfers, of %d", o.key, n, want)
		}
		if n := sms.sent[o.number]; n != want {
			w.t.Errorf("%s: %d text messages, of %d", o.key, n, want)
		}
		switch n := arrived[o.address]; {
		case o.once && n == 0 && want == 1: // the outcome is unknown, and recorded as unknown
			unknown++
		case n != want:
			w.t.Errorf("%s: %d e-mails, of %d", o.key, n, want)
		}
	}
	if n := count("select count(*) from notify_queue where state = 'unknown' and on_unknown = 'park'"); n < unknown {
		w.t.Errorf("%d e-mails did not arrive, of %d the outcome is said to be unknown", unknown, n)
	}
	if n := count("select count(*) from notify_queue where state <> 'unknown' or on_unknown <> 'park'"); n != 0 {
		w.t.Errorf("%d messages are left", n)
	}
	w.t.Logf("%d orders, %d e-mails of unknown outcome that did not arrive, %d cuts, killed %v", placed, unknown,
		sms.cuts, kills)
	if placed < 100 || sms.cuts == 0 || kills["postgres"] == 0 || kills["server"] == 0 || kills["smtp"] == 0 {
		w.t.Error("the test tried too little")
	}
}
