package code_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/clean"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/code"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/notify/template"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var caller = commit.Caller{Tenant: 1, Principal: "p", RequestID: "r"}

const ada = "+8613812345678"

// fixture sends and verifies codes, alternating between engines on one database.
type fixture struct {
	t       *testing.T
	engines []*flow.Engine
	super   *pgxpool.Pool
	master  *secret.Master
	pool    *pgxpool.Pool
	turn    atomic.Int64
}

func newFixture(t *testing.T, engines int) *fixture {
	t.Helper()
	db := pgtest.New(t)
	d := &fixture{t: t, super: pgtest.Pool(t, db.SuperDSN), master: secret.New()}
	for range engines {
		pool, err := pg.Open(t.Context(), db.AllDSN, 6)
		if err != nil {
			t.Fatal(err)
		}
		e := flow.NewSendingEngine(pool, "test", nil, nil, &notify.Outbox{Master: d.master, Region: "CN"})
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if err := e.Drain(ctx); err != nil {
				t.Error(err)
			}
			pool.Close()
		})
		d.engines, d.pool = append(d.engines, e), pool
	}
	return d
}

func (d *fixture) do(c flow.Command) (any, error) {
	e := d.engines[int(d.turn.Add(1))%len(d.engines)]
	out, err := e.Do(context.Background(), flow.Submission{Tenant: 1, RequestID: "r", Command: c, Rows: 4, Bytes: 400})
	return out.Answer, err
}

// request returns a SendCode with default settings.
func request(to, digits string) *flow.SendCode {
	return &flow.SendCode{Issue: code.Issue{Caller: caller, Type: "login", Channel: send.SMS, Recipient: to,
		Code:  digits,
		Nonce: code.NewNonce(),
		Life:  code.DefaultLife, Interval: code.DefaultInterval, Daily: code.DefaultDaily},
		Template: template.Name{Tenant: 1, Channel: send.SMS, Locale: "en"}}
}

func (d *fixture) send(c *flow.SendCode) error {
	_, err := d.do(c)
	return err
}

func (d *fixture) mustSend(c *flow.SendCode) {
	d.t.Helper()
	if err := d.send(c); err != nil {
		d.t.Fatal(err)
	}
}

func try(to, digits string) *code.VerifyCommand {
	return &code.VerifyCommand{Caller: caller, Type: "login", Channel: send.SMS, Recipient: to, Code: digits,
		MissNonce: code.NewNonce()}
}

func (d *fixture) verify(to, digits string) code.Verified {
	d.t.Helper()
	answer, err := d.do(flow.Code(try(to, digits)))
	if err != nil {
		d.t.Fatal(err)
	}
	return answer.(code.Verified)
}

func (d *fixture) exec(sql string, args ...any) {
	d.t.Helper()
	if _, err := d.super.Exec(context.Background(), sql, args...); err != nil {
		d.t.Fatal(err)
	}
}

// later shifts the times of codes and counters into the past.
func (d *fixture) later(by time.Duration) {
	d.exec(`update notify_codes set sent_at = array(select s - $1::interval
		from unnest(sent_at) s), expires_at = expires_at - $1::interval, forget_at = forget_at - $1::interval,
		tried_at = tried_at - $1::interval`, by)
	d.exec(`update notify_counters set slot = slot - extract(epoch
		from $1::interval)::bigint * 60 / window_s, expires_at = expires_at - $1::interval`, by)
}

func (d *fixture) count(sql string) (n int) {
	d.t.Helper()
	if err := d.super.QueryRow(context.Background(), sql).Scan(&n); err != nil {
		d.t.Fatal(err)
	}
	return n
}

// says returns the number of messages whose text contains text.
func (d *fixture) says(text string) (n int) {
	d.t.Helper()
	rows, err := d.super.Query(context.Background(), `select tenant_id, message_id, content from notify_contents`)
	if err != nil {
		d.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var tenant int32
		var id int64
		var kept []byte
		err := rows.Scan(&tenant, &id, &kept)
		content, unread := send.ReadContent(d.master, tenant, id, kept)
		if err != nil || unread != nil {
			d.t.Fatal(err, unread)
		}
		if strings.Contains(content.Text, text) {
			n++
		}
	}
	return n
}

func TestCodeIsValidOnce(t *testing.T) {
	t.Parallel()
	d := newFixture(t, 1)
	d.mustSend(request(ada, "123456"))
	if v := d.verify(ada, "123457"); v != (code.Verified{TriesLeft: 4}) {
		t.Error(v)
	}
	if v := d.verify("138 1234 5678", "123456"); !v.Valid { // the same number in another spelling
		t.Error(v)
	}
	if v := d.verify(ada, "123456"); v.Valid {
		t.Error("used twice")
	}
	for _, c := range []*code.VerifyCommand{{Type: "pay", Channel: send.SMS, Recipient: ada},
		{Type: "login", Channel: send.SMS, Recipient: "+8613812345679"},
		{Type: "login", Channel: send.Email, Recipient: "ada@example.com"}} {
		d.later(2 * time.Minute)
		d.mustSend(request(ada, "222222"))
		c.Caller, c.Code = caller, "222222"
		if answer, err := d.do(flow.Code(c)); err != nil || answer.(code.Verified).Valid {
			t.Error("valid for another type or recipient:", answer, err)
		}
	}
}

func TestFiveWrongTriesVoidACode(t *testing.T) {
	t.Parallel()
	d := newFixture(t, 1)
	d.mustSend(request(ada, "123456"))
	for left := int32(4); left >= 0; left-- {
		if v := d.verify(ada, "000000"); v != (code.Verified{TriesLeft: left}) {
			t.Error(v, left)
		}
	}
	if v := d.verify(ada, "123456"); v != (code.Verified{}) {
		t.Error("the right code after five wrong tries:", v)
	}
	d.later(time.Minute)
	d.mustSend(request(ada, "654321"))
	if v := d.verify(ada, "123456"); v != (code.Verified{TriesLeft: 4}) {
		t.Error("the previous code, and tries_left of the new one:", v)
	}
	if v := d.verify(ada, "654321"); !v.Valid {
		t.Error(v)
	}
}

func TestCodeExpires(t *testing.T) {
	t.Parallel()
	d := newFixture(t, 1)
	d.mustSend(request(ada, "123456"))
	d.later(5*time.Minute - 10*time.Second)
	if v := d.verify(ada, "111111"); v.TriesLeft != 4 {
		t.Error(v)
	}
	d.later(10 * time.Second)
	if v := d.verify(ada, "123456"); v.Valid {
		t.Error("valid after its life")
	}
}

func TestOneCodePerMinute(t *testing.T) {
	t.Parallel()
	d := newFixture(t, 1)
	d.mustSend(request(ada, "123456"))
	d.later(20 * time.Second)
	err := d.send(request(ada, "222222"))
	if f := fault.Of(err); !fault.Is(err, code.TooSoon) || f.Metadata["retry_after_seconds"] < "20" ||
		f.Metadata["retry_after_seconds"] > "40" || f.RetryAfter < 20*time.Second ||
		f.RetryAfter > 40*time.Second {
		t.Errorf("%v %v", err, f)
	}
	if v := d.verify(ada, "123456"); !v.Valid {
		t.Error("a refused request voided the previous code")
	}
	other := request(ada, "333333")
	other.Type = "pay"
	d.mustSend(other)
	d.mustSend(request("+8613812345679", "333333"))
	d.later(40 * time.Second)
	d.mustSend(request(ada, "222222"))
}

func TestUnsentCodeDoesNotDelayTheNext(t *testing.T) {
	t.Parallel()
	d := newFixture(t, 1)
	d.mustSend(request(ada, "100000"))
	for name, die := range d.die() {
		if err := d.send(request(ada, "200000")); !fault.Is(err, code.TooSoon) {
			t.Error(name, err)
		}
		die()
		if err := d.send(request(ada, "300000")); err != nil {
			t.Error(name, err)
		}
	}
	for kind, state := range map[string]string{"unknown": "unknown", "failed": "failed", "sent": ""} {
		d.event(kind)
		if state == "" {
			d.exec(`delete from notify_queue where message_id = $1`, d.last())
		} else {
			d.exec(`update notify_queue set state = $2, due_at = case $2 when 'failed' then now() end, holder = null
				where message_id = $1`, d.last(), state)
		}
		if err := d.send(request(ada, "400000")); !fault.Is(err, code.TooSoon) {
			t.Error(kind, "may have been delivered:", err)
		}
	}
	if n := d.count(`select cardinality(sent_at) from notify_codes`); n != 4 {
		t.Errorf("%d sends count for the day, want 4", n)
	}
}

func TestTenCodesPerDay(t *testing.T) {
	t.Parallel()
	d := newFixture(t, 1)
	for range 10 {
		d.mustSend(request(ada, "123456"))
		d.later(time.Hour)
	}
	err := d.send(request(ada, "123456"))
	if f := fault.Of(err); !fault.Is(err, code.TooMany) || f.RetryAfter < 14*time.Hour-time.Minute ||
		f.RetryAfter > 14*time.Hour {
		t.Error(err, f)
	}
	d.later(14 * time.Hour)
	d.mustSend(request(ada, "123456"))
	if err := d.send(request(ada, "123456")); !fault.Is(err, code.TooSoon) {
		t.Error(err)
	}
	d.later(time.Minute)
	if err := d.send(request(ada, "123456")); !fault.Is(err, code.TooMany) {
		t.Error(err)
	}
}

// Wrong tries get the same answers whether a code was sent, suppressed, used, or never requested.
func TestAnswersDoNotRevealWhetherACodeWasSent(t *testing.T) {
	t.Parallel()
	d := newFixture(t, 1)
	d.mustSend(request(ada, "123456"))
	suppressed := request("+8613812345670", "123456")
	suppressed.Suppress = true
	d.mustSend(suppressed)
	d.mustSend(request("+8613812345671", "123456"))
	d.verify("+8613812345671", "123456") // used
	var answers [4][]code.Verified
	for i, to := range []string{ada, "+8613812345670", "+8613812345671", "+8613812345672"} {
		for range 8 {
			answers[i] = append(answers[i], d.verify(to, "999999"))
		}
		if !slices.Equal(answers[i], answers[0]) {
			t.Errorf("%v, want %v", answers[i], answers[0])
		}
	}
	if n := d.count(`select count(*) from notify_messages`); n != 2 {
		t.Errorf("%d messages, want 2", n)
	}
	if v := d.verify("+8613812345670", ""); v.Valid {
		t.Error("an empty code verified a suppressed one")
	}
	again := request("+8613812345670", "123456")
	again.Suppress = true
	if err := d.send(again); !fault.Is(err, code.TooSoon) {
		t.Error(err)
	}
	d.mustSend(request("+8613812345672", "123456")) // earlier wrong tries do not delay a code
	if v := d.verify("+8613812345672", "123456"); !v.Valid {
		t.Error(v)
	}
}

// Answers do not reveal whether a code was voided by wrong tries, has a long life, expired long ago, or was never sent:
// values, reason, text and state are equal, even if the tries are spread over more than the life of a code.
func TestVoidCodesAreAnsweredLikeNone(t *testing.T) {
	t.Parallel()
	d := newFixture(t, 1)
	long := request("+8613812345671", "123456")
	long.Life = code.MaxLife
	d.mustSend(request("+8613812345670", "123456"))
	d.mustSend(long)
	d.later(4 * time.Minute)
	recent := request("+8613812345672", "123456")
	recent.Life = code.MinLife
	d.mustSend(recent)
	answers := map[string][]string{}
	record := func(to string, c *code.VerifyCommand) {
		answer, err := d.do(flow.Code(c))
		text := fmt.Sprint(answer)
		if f := fault.Of(err); f != nil {
			text = fmt.Sprint(f.Reason.Name, f.Error(), f.Metadata, f.Fields)
		}
		answers[to] = append(answers[to], text)
	}
	recipients := []string{"+8613812345670", "+8613812345671", "+8613812345672", "+8613812345673"}
	for _, pause := range []time.Duration{0, 0, 3 * time.Minute, 10 * time.Minute, 0, 7 * time.Minute, 0,
		30 * time.Minute,
		55 * time.Minute, 0, 2 * time.Hour} {
		d.later(pause)
		for _, to := range recipients {
			c := try(to, "999999")
			record(to, c)
			required := try(to, "888888")
			required.Required = true
			record(to, required)
			if len(answers[to]) > 5 { // void: the right code gets the same answer
				record(to, try(to, "123456"))
			}
		}
	}
	for _, to := range recipients {
		if !slices.Equal(answers[to], answers[recipients[3]]) {
			t.Errorf("%s:\n%q, and without a code\n%q", to, answers[to], answers[recipients[3]])
		}
	}
}

// failing is a command that fails after its parts were applied.
type failing struct {
	flow.Command
	with error
}

func (f failing) Count(tx *flow.Tx) bool { return f.Command.(commit.Counted[*flow.Tx]).Count(tx) }

func (f failing) Apply(tx *flow.Tx) (any, error) {
	if _, err := f.Command.Apply(tx); err != nil {
		return nil, err
	}
	return nil, f.with
}

// broken has one reason of each class that rolls back a command.
var broken = func() (list []*fault.Reason) {
	for _, class := range []fault.Class{fault.Refusal, fault.Conflict, fault.BadRequest, fault.System} {
		list = append(list, fault.Register(fault.Reason{Name: "TEST_BROKE_" + class.String(), Class: class,
			Code: fault.FailedPrecondition, Step: fault.NewKey}))
	}
	return list
}()

func TestWrongTryCountsEvenIfItsCommandFails(t *testing.T) {
	t.Parallel()
	d := newFixture(t, 1)
	d.mustSend(request(ada, "123456"))
	for _, broke := range broken {
		if _, err := d.do(failing{flow.Code(try(ada, "000000")), broke.New("no")}); !fault.Is(err, broke) {
			t.Fatal(err)
		}
	}
	demanded := try(ada, "000000")
	demanded.Required = true
	if _, err := d.do(flow.Code(demanded)); !fault.Is(err, code.Wrong) || fault.Of(err).Metadata["tries_left"] != "0" {
		t.Error(err, fault.Of(err))
	}
	d.later(time.Minute)
	d.mustSend(request(ada, "123456"))
	for _, broke := range broken {
		if _, err := d.do(failing{flow.Code(try(ada, "123456")), broke.New("no")}); !fault.Is(err, broke) {
			t.Fatal(err)
		}
	}
	if v := d.verify(ada, "123456"); v != (code.Verified{Valid: true, TriesLeft: 5}) {
		t.Error("a failed command used the code:", v)
	}
}

func TestConcurrentVerifiesUseACodeOnce(t *testing.T) {
	t.Parallel()
	d := newFixture(t, 2)
	for round := range 5 {
		to := fmt.Sprintf("+86138123456%02d", round)
		d.mustSend(request(to, "123456"))
		var valid atomic.Int32
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				answer, err := d.do(flow.Code(try(to, "123456")))
				if err != nil {
					t.Error(err)
				} else if answer.(code.Verified).Valid {
					valid.Add(1)
				}
			})
		}
		wg.Wait()
		if n := valid.Load(); n != 1 {
			t.Errorf("%d of 20 verified one code", n)
		}
	}
}

// Concurrent wrong tries are all counted: each gets a different tries_left until 0.
func TestConcurrentWrongTriesAreAllCounted(t *testing.T) {
	t.Parallel()
	d := newFixture(t, 2)
	for round := range 6 {
		to := fmt.Sprintf("+86138123456%02d", round)
		if round%2 == 0 { // otherwise the first try inserts the row
			d.mustSend(request(to, "123456"))
		}
		var mu sync.Mutex
		var left []int32
		var wg sync.WaitGroup
		for range 12 {
			wg.Go(func() {
				answer, err := d.do(flow.Code(try(to, "000000")))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				left = append(left, answer.(code.Verified).TriesLeft)
			})
		}
		wg.Wait()
		slices.Sort(left)
		if want := []int32{0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4}; !slices.Equal(left, want) {
			t.Errorf("tries left: %v", left)
		}
		if v := d.verify(to, "123456"); v.Valid {
			t.Error("valid after too many wrong tries")
		}
	}
}

func TestConcurrentRequestsSendOneCode(t *testing.T) {
	t.Parallel()
	d := newFixture(t, 2)
	var sent, soon atomic.Int32
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			switch err := d.send(request(ada, code.New(6))); {
			case err == nil:
				sent.Add(1)
			case fault.Is(err, code.TooSoon):
				soon.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if sent.Load() != 1 || soon.Load() != 19 || d.count(`select count(*) from notify_messages`) != 1 {
		t.Error(sent.Load(), soon.Load())
	}
}

func TestDatabaseDoesNotRevealCodes(t *testing.T) {
	t.Parallel()
	d := newFixture(t, 1)
	d.mustSend(request(ada, "8472913650"))
	for _, table := range []string{"notify_codes", "notify_contents", "notify_messages", "notify_queue",
		"notify_events", "notify_fingerprints", "notify_counters", "commit_keys"} {
		var text string
		if err := d.super.QueryRow(t.Context(), `select coalesce(string_agg(r::text, ' '), '') from `+table+` r`).
			Scan(&text); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(text, "8472913650") || strings.Contains(text, fmt.Sprintf("%x", "8472913650")) ||
			strings.Contains(text, "13812345678") && table != "notify_contents" {
			t.Errorf("%s contains the code or the number", table)
		}
	}
	if n := d.count(`select count(*) from notify_contents where contents_until <= (now() at time zone
		'UTC')::date + 1`); n != 1 || d.says("8472913650 is your code. It is good for 5 minutes.") != 1 {
		t.Error("no message with the code, or its content is kept for more than a day")
	}
	d.mustSend(request("+8613812345670", "8472913650"))
	if n := d.count(`select count(distinct code_hash) from notify_codes`); n != 2 {
		t.Error("equal codes have equal hashes")
	}
	if n := d.count(`select count(*) from notify_messages where on_unknown = 'never' and priority = 0
		and fingerprint is null and give_up_at = accepted_at + interval '5 min'`); n != 2 {
		t.Error("messages of codes must have high priority and on_unknown never")
	}
}

func TestCodesAreLimitedByIPAndPrefix(t *testing.T) {
	t.Parallel()
	d := newFixture(t, 1)
	ask := func(i int, ip string, suppress bool) error {
		c := request(fmt.Sprintf("+861380000%04d", i), "123456")
		if ip == "" {
			c = request(fmt.Sprintf("+86%d%08d", 131+i%20, i*10_000), "123456") // a different prefix each
		}
		c.ClientIP, c.Suppress = ip, suppress
		return d.send(c)
	}
	for i := range 30 {
		if err := ask(i, "192.0.2.1", i%2 == 0); err != nil {
			t.Fatal(i, err)
		}
	}
	for _, suppress := range []bool{true, false} {
		if err := ask(30, "192.0.2.1", suppress); !fault.Is(err, notify.Limited) ||
			fault.Of(err).Metadata["scope"] != "ip" {
			t.Error(err)
		}
	}
	for i := 30; i < 60; i++ {
		if err := ask(i, "192.0.2.2", false); err != nil {
			t.Fatal(i, err)
		}
	}
	if err := ask(60, "192.0.2.3", false); !fault.Is(err, notify.Limited) ||
		fault.Of(err).Metadata["scope"] != "prefix" {
		t.Error(err)
	}
	for i := range 70 {
		if err := ask(i, "", false); err != nil {
			t.Fatal(i, err)
		}
	}
	own := newFixture(t, 1)
	for _, l := range []notify.Limit{{Channel: notify.Codes, Scope: notify.PerPrefix, Window: time.Hour,
		MaxMessages: 70},
		{Channel: notify.Codes, Scope: notify.PerIP, Window: time.Hour, MaxMessages: 1000}} {
		if _, err := notify.PutLimit(t.Context(), own.super, 1, l); err != nil {
			t.Fatal(err)
		}
	}
	for d, i := own, 0; i <= 70; i++ {
		c := request(fmt.Sprintf("+861380000%04d", i), "123456")
		c.ClientIP = "192.0.2.1"
		if err := d.send(c); fault.Is(err, notify.Limited) != (i == 70) || err != nil && i < 70 {
			t.Error(i, err)
		}
	}
}

func TestTenantsTemplateReplacesTheBuiltIn(t *testing.T) {
	t.Parallel()
	d := newFixture(t, 1)
	put := func(name string, def template.Definition) {
		c, err := template.NewPut(caller, send.SMS, name, "en", &def)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.do(flow.Template(c)); err != nil {
			t.Fatal(err)
		}
	}
	says := func(text string) {
		t.Helper()
		if n := d.says(text); n != 1 {
			t.Errorf("no message with text %s", text)
		}
	}
	name := template.Variable{Name: "name", Kind: template.String}
	digits := template.Variable{Name: "code", Kind: template.String, MaxLength: 10}
	put("code", template.Definition{Text: "Shop: {{.code}}", Variables: []template.Variable{digits}})
	put("hello", template.Definition{Text: "{{.name}}: {{.code}}", Variables: []template.Variable{digits, name}})
	put("useless", template.Definition{Text: "{{.name}}", Variables: []template.Variable{name}})
	d.mustSend(request("+8613812345670", "111111"))
	says("Shop: 111111")
	c := request("+8613812345671", "222222")
	c.Template.Name, c.Variables = "hello", map[string]any{"name": "Ada", "code": "not this"}
	d.mustSend(c)
	says("Ada: 222222")
	for _, suppress := range []bool{false, true} {
		c = request("+8613812345672", "222222")
		c.Template.Name, c.Variables, c.Suppress = "useless", map[string]any{"name": "Ada"}, suppress
		if err := d.send(c); !fault.Is(err, code.Unfit) {
			t.Error(err)
		}
		c.Template.Name = "none"
		if err := d.send(c); !fault.Is(err, template.NotFound) {
			t.Error(err)
		}
	}
	if err := d.send(request("+8613812345672", "222222")); err != nil {
		t.Error("a refused request counts:", err)
	}
}

func TestExpiredCodesAreCleaned(t *testing.T) {
	t.Parallel()
	d := newFixture(t, 1)
	d.mustSend(request(ada, "123456"))
	d.verify("+8613812345670", "123456")
	codes, cleaner := code.Codes(), clean.Cleaner{Pool: d.pool, Metrics: clean.NewMetrics(nil)}
	for _, step := range []struct {
		by   time.Duration
		left int
	}{{59 * time.Minute, 3}, {2 * time.Minute, 2}, {22 * time.Hour, 2}, {2 * time.Hour, 0}} {
		d.later(step.by)
		if _, err := cleaner.Clean(t.Context(), &codes); err != nil {
			t.Fatal(err)
		}
		if n := d.count(`select count(*) from notify_codes`); n != step.left {
			t.Errorf("after %v more: %d rows, want %d", step.by, n, step.left)
		}
	}
}

func TestCodesRequireAMasterKey(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pool := pgtest.Pool(t, db.AllDSN)
	e := flow.NewEngine(pool, "test", nil, nil)
	defer e.Drain(context.Background())
	for _, c := range []flow.Command{request(ada, "123456"), flow.Code(try(ada, "123456"))} {
		if _, err := e.Do(t.Context(), flow.Submission{Tenant: 1, RequestID: "r", Command: c, Rows: 1,
			Bytes: 1}); !fault.Is(err, secret.Missing) {
			t.Errorf("%T: %v", c, err)
		}
	}
	d := newFixture(t, 1)
	for _, c := range []flow.Command{request("nobody", "123456"), flow.Code(try("nobody", "123456"))} {
		if _, err := d.do(c); !fault.Is(err, fault.FieldInvalid) {
			t.Errorf("%T: %v", c, err)
		}
	}
}

// A caller can send guessed texts and compare hashes; the hash of a code's message must not match.
func TestContentHashDoesNotRevealTheCode(t *testing.T) {
	t.Parallel()
	d := newFixture(t, 1)
	d.mustSend(request(ada, "123456"))
	same, err := code.BuiltIn(send.SMS, "en", code.Variables("123456", code.DefaultLife))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.do(flow.Notify(&notify.SendCommand{Caller: caller,
		Params: notify.Params{Channel: send.SMS, Recipient: "+8613812345679", Content: same.Content}})); err != nil {
		t.Fatal(err)
	}
	if n := d.count("select count(distinct content_hash) from notify_messages"); n != 2 {
		t.Error("an equal text has the content hash of the code's message")
	}
}
