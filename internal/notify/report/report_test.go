package report_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/report"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/notify/sms"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// fixture is a server that receives reports, and alternates between two engines on one database.
type fixture struct {
	*testing.T
	super   *pgxpool.Pool
	db      *pgtest.DB
	engines [2]*flow.Engine
	server  *httptest.Server
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	db := pgtest.New(t)
	d := &fixture{T: t, super: pgtest.Pool(t, db.SuperDSN), db: db}
	app := pgtest.Pool(t, db.AllDSN)
	if _, err := d.super.Exec(t.Context(), `insert into access_tenants (tenant_id, name)
		values (1, 'one'), (2, 'two') on conflict do nothing`); err != nil {
		t.Fatal(err)
	}
	for i := range d.engines {
		pool, err := pg.Open(t.Context(), db.AllDSN, 6)
		if err != nil {
			t.Fatal(err)
		}
		e := flow.NewSendingEngine(pool, "test", nil, slog.New(slog.DiscardHandler),
			&notify.Outbox{Master: secret.New(), Instance: "test", Region: "CN", Metrics: notify.NewMetrics(nil)})
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if err := e.Drain(ctx); err != nil {
				t.Error(err)
			}
			pool.Close()
		})
		d.engines[i] = e
	}
	aliyun, err := sms.NewAliyun(sms.AliyunSettings{AccessKeyID: "x", AccessKeySecret: "y", SignName: "z",
		ReportSecret: "path"})
	if err != nil {
		t.Fatal(err)
	}
	tencent, err := sms.NewTencent(sms.TencentSettings{SecretID: "x", SecretKey: "y", AppID: "z", ReportSecret: "path"})
	if err != nil {
		t.Fatal(err)
	}
	var turn int
	var mu sync.Mutex
	h := &report.Handler{Sources: map[string]report.Source{"main": aliyun, "tencent": tencent},
		Find: report.NewFinder(app).Tenant,
		Take: func(ctx context.Context, requestID string, reports []report.Placed) error {
			mu.Lock()
			turn++
			e := d.engines[turn%2]
			mu.Unlock()
			return flow.TakeReports(ctx, e, requestID, reports)
		}, Log: slog.New(slog.DiscardHandler)}
	mux := http.NewServeMux()
	h.Register(mux)
	d.server = httptest.NewServer(mux)
	t.Cleanup(d.server.Close)
	return d
}

// send sends a message. With a number it is recorded as sent, with that provider_message_id.
func (d *fixture) send(tenant int32, provider, number string) *notify.Message {
	d.Helper()
	out, err := d.engines[0].Do(d.Context(),
		flow.Submission{Tenant: tenant, RequestID: "r", Rows: 1, Bytes: 100, Command: flow.Notify(&notify.SendCommand{
			Caller: commit.Caller{Tenant: tenant, Principal: "p",
				RequestID: "r"}, Params: notify.Params{Channel: send.SMS,
				Recipient: "+8613812345678",
				Content:   send.Content{Text: "x"}, BusinessType: "t", Priority: notify.Normal, OnUnknown: "park",
				MaxAttempts: 3, GiveUpAfter: time.Hour,
				ContentLife: time.Hour, RepeatWindow: new(time.Duration)}})})
	if err != nil {
		d.Fatal(err)
	}
	m := out.Answer.(*notify.Message)
	if number != "" {
		d.taken(m, provider, number)
	}
	return m
}

func (d *fixture) taken(m *notify.Message, provider, number string) {
	d.Helper()
	if _, err := d.super.Exec(d.Context(), `with gone as (delete from notify_queue where tenant_id = $1
		and message_id = $2)
		insert into notify_events (tenant_id, message_id, month, event_id, kind, attempt, provider, provider_message_id,
		at, instance)
		select tenant_id, message_id, month, 1, 'sent', 1, $3, $4, clock_timestamp(), 'test' from notify_messages
		where tenant_id = $1 and message_id = $2`,
		m.Tenant, m.ID, provider, number); err != nil {
		d.Fatal(err)
	}
}

func (d *fixture) post(path, body string) int {
	d.Helper()
	r, err := http.Post(d.server.URL+"/notify/reports/"+path, "application/json", strings.NewReader(body))
	if err != nil {
		d.Fatal(err)
	}
	_ = r.Body.Close()
	return r.StatusCode
}

// events lists the events of a message.
func (d *fixture) events(m *notify.Message) (kinds string) {
	d.Helper()
	if err := d.super.QueryRow(d.Context(), `select coalesce(string_agg(kind || coalesce(' ' || failure_code, ''), ', '
		order by event_id), '') from notify_events
		where tenant_id = $1 and message_id = $2`, m.Tenant, m.ID).Scan(&kinds); err != nil {
		d.Fatal(err)
	}
	return kinds
}

func (d *fixture) want(got, want any) {
	d.Helper()
	if got != want {
		d.Errorf("got %v, want %v", got, want)
	}
}

func aliyunSays(key, success, code string) string {
	return `[{"phone_number":"13812345678","success":` + success + `,"err_code":"` + code +
		`","biz_id":"b","out_id":"` + key + `"}]`
}

func TestReportsByKey(t *testing.T) {
	d := newFixture(t)
	m := d.send(1, "main", "b")
	key := send.Keys("").Of(1, m.ID)
	d.want(d.post("main/wrong", aliyunSays(key, "true", "")), 403)
	d.want(d.post("other/path", aliyunSays(key, "true", "")), 404)
	d.want(d.post("main/path", `{`), 400)
	d.want(d.post("main/path", strings.Repeat(" ", 1<<20+1)), 413)
	d.want(d.events(m), "sent")
	// Concurrent repeats at two servers make one event.
	var wg sync.WaitGroup
	for range 30 {
		wg.Go(func() { d.want(d.post("main/path", aliyunSays(key, "true", "")), 200) })
	}
	wg.Wait()
	d.want(d.events(m), "sent, delivered")
	// Reports of other users of the account, or about messages that do not exist, are ignored.
	d.want(d.post("main/path", aliyunSays("order-77", "true", "")), 200)
	d.want(d.post("main/path", aliyunSays(send.Keys("").Of(1, m.ID+1), "true", "")), 200)
	d.want(d.post("main/path", aliyunSays(send.Keys("").Of(2, m.ID), "true", "")), 200)
	d.want(d.events(m), "sent, delivered")
}

func TestReportsByProviderMessageID(t *testing.T) {
	d := newFixture(t)
	says := func(number, status string) string {
		return `{"report_status":"` + status + `","errmsg":"002","sid":"` + number + `"}`
	}
	first, second := d.send(1, "tencent", "n1"), d.send(2, "", "")
	// The second message is not recorded as sent yet: the first report is recorded, and 503 requests a repeat.
	body := "[" + says("n1", "SUCCESS") + "," + says("n2", "FAIL") + "]"
	d.want(d.post("tencent/path", body), 503)
	d.want(d.events(first), "sent, delivered")
	d.taken(second, "tencent", "n2")
	d.want(d.post("tencent/path", body), 200)
	d.want(d.post("tencent/path", body), 200)
	d.want(d.events(first), "sent, delivered")
	d.want(d.events(second), "sent, undelivered tencent_002")
	// A malformed report does not block others. 256 bytes are allowed.
	long := strings.Repeat("9", 256)
	third := d.send(1, "tencent", long)
	d.want(d.post("tencent/path", "["+says(`a\u0000b`, "FAIL")+","+says(long, "SUCCESS")+"]"), 200)
	d.want(d.events(third), "sent, delivered")
}

// The plan was made on empty tables, and stays good with many tenants and events.
func TestFinderReadsFewBlocks(t *testing.T) {
	d := newFixture(t)
	d.db.SkipChecks() // events without messages
	pgtest.StopAutovacuum(t, d.super)
	one, err := pg.Open(t.Context(), d.db.AllDSN, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(one.Close)
	finder := report.NewFinder(one)
	for range 6 {
		if tenant, err := finder.Tenant(t.Context(), "tencent", "n1"); tenant != 0 || err != nil {
			t.Fatal(tenant, err)
		}
	}
	d.send(2, "tencent", "n1")
	for _, sql := range []string{
		`insert into access_tenants (tenant_id, name) select 100 + n, 'many-' || n from generate_series(1, 2000) n`,
		`insert into notify_events (tenant_id, message_id, month, event_id, kind, attempt, provider,
			provider_message_id, at, instance)
			select 1, n, date_trunc('month', now() at time zone 'UTC'), 1, 'sent', 1, 'tencent', 'x' || n, now(), 'test'
			from generate_series(1, 50000) n`,
	} {
		if _, err := d.super.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	blocks := func() int64 { return pgtest.Touched(t, "^(notify_events|access_tenants$)", d.super, one) }
	for range 2 {
		before := blocks()
		tenant, err := finder.Tenant(t.Context(), "tencent", "n1")
		if n := blocks() - before; tenant != 2 || err != nil || n > 50 {
			t.Errorf("tenant %d, %v, over %d blocks", tenant, err, n)
		}
	}
}

func TestReportSettlesAnUnknownMessage(t *testing.T) {
	d := newFixture(t)
	m := d.send(1, "", "")
	if _, err := d.super.Exec(t.Context(), `update notify_queue set state = 'unknown', due_at = null, holder = null,
		failure_code = 'timeout' where message_id = $1`, m.ID); err != nil {
		t.Fatal(err)
	}
	d.want(d.post("main/path", aliyunSays(send.Keys("").Of(1, m.ID), "true", "")), 200)
	d.want(d.events(m), "delivered")
	var open int
	if err := d.super.QueryRow(t.Context(), `select count(*) from notify_queue`).Scan(&open); err != nil || open != 0 {
		t.Errorf("%d messages are open, %v", open, err)
	}
}
