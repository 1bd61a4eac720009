package webhook_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// fixture is two engines on one database, like two servers.
type fixture struct {
	testing.TB
	super   *pgxpool.Pool
	reader  *webhook.Reader
	engines [2]*flow.Engine
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	db := pgtest.New(t)
	d := &fixture{TB: t, super: pgtest.Pool(t, db.SuperDSN), reader: webhook.NewReader(pgtest.Pool(t, db.AllDSN))}
	for i := range d.engines {
		pool, err := pg.Open(t.Context(), db.AllDSN, 6)
		if err != nil {
			t.Fatal(err)
		}
		e := flow.NewEngine(pool, t.Name(), commit.NewMetrics(prometheus.NewRegistry()), nil)
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
	return d
}

var caller = commit.Caller{Tenant: 1, Principal: "test", RequestID: "r"}

func create(name, url string, types ...string) *webhook.CreateCommand {
	return &webhook.CreateCommand{Caller: caller, Name: name, URL: url, Types: types}
}

// all runs commands in one batch, and describes each answer or fault.
func (d *fixture) all(engine int, commands ...commit.Command[*webhook.Tx]) (ended []string) {
	d.Helper()
	submissions := make([]flow.Submission, len(commands))
	for i, c := range commands {
		submissions[i] = flow.Submission{Tenant: 1, RequestID: "r", Command: flow.Webhook(c), Rows: 1, Bytes: 400}
	}
	for _, r := range d.engines[engine].DoAll(context.Background(), submissions) {
		ended = append(ended, describe(r))
	}
	return ended
}

func describe(r commit.Result) string {
	if f := fault.Of(r.Err); f != nil {
		return f.Reason.Name
	}
	if r.Err != nil {
		return r.Err.Error()
	}
	var e webhook.Endpoint
	switch a := r.Outcome.Answer.(type) {
	case webhook.Endpoint:
		e = a
	case webhook.Observed:
		if e = a.Endpoint; a.Now {
			return "disabled " + e.Disabled
		}
		if e.ID == 0 {
			return "nothing"
		}
	}
	text := fmt.Sprintf("%s %s v%d", e.URL, strings.Join(e.Types, ","), e.Version)
	if e.Disabled != "" {
		text += " " + e.Disabled
	}
	if r.Outcome.Existed {
		text += " existed"
	}
	return text
}

func (d *fixture) want(got []string, want ...string) {
	d.Helper()
	if !slices.Equal(got, want) {
		d.Errorf("got %q, want %q", got, want)
	}
}

// age shifts the times of all endpoints into the past.
func (d *fixture) age(by time.Duration) {
	d.Helper()
	for _, sql := range []string{
		`alter table commit_batches disable trigger user`,
		`update commit_batches set recorded_at = recorded_at - $1 * interval '1 us'`,
		`alter table commit_batches enable trigger user`,
		`update notify_endpoints set failing_since = failing_since - $1 * interval '1 us',
			failed_at = failed_at - $1 * interval '1 us', previous_expires_at = previous_expires_at - $1 * interval
			'1 us', disabled_at = disabled_at - $1 * interval '1 us'`,
	} {
		args := []any{by.Microseconds()}
		if !strings.Contains(sql, "$1") {
			args = nil
		}
		if _, err := d.super.Exec(context.Background(), sql, args...); err != nil {
			d.Fatal(err)
		}
	}
}

func (d *fixture) get(name string) webhook.Endpoint {
	d.Helper()
	e, err := d.reader.Endpoint(context.Background(), webhook.Key{Tenant: 1, Name: name})
	if err != nil {
		d.Fatal(err)
	}
	return e
}

func ptr[T any](v T) *T { return &v }

// together combines commands into one, like an Execute.
type together []commit.Command[*webhook.Tx]

func (all together) Need(tx *webhook.Tx) {
	for _, c := range all {
		c.Need(tx)
	}
}

func (all together) Apply(tx *webhook.Tx) (answer any, err error) {
	for _, c := range all {
		if answer, err = c.Apply(tx); err != nil {
			break
		}
	}
	return answer, err
}

func TestCreateUpdateAndDelete(t *testing.T) {
	d := newFixture(t)
	update := func(change func(*webhook.UpdateCommand)) *webhook.UpdateCommand {
		c := &webhook.UpdateCommand{Caller: caller, Name: "shop"}
		change(c)
		return c
	}
	d.want(d.all(0, create("shop", "https://a.example", "x", "y"), create("shop", "https://a.example", "x", "y"),
		create("shop", "https://b.example", "x")),
		"https://a.example x,y v1", "https://a.example x,y v1 existed", "WEBHOOK_ENDPOINT_EXISTS_DIFFERENT")
	d.want(d.all(1, create("shop", "https://a.example", "x", "y")), "https://a.example x,y v1 existed")
	d.want(d.all(0, update(func(c *webhook.UpdateCommand) { c.URL, c.Types = ptr("https://c.example"), &[]string{} })),
		"https://c.example  v1")
	d.want(d.all(0, update(func(c *webhook.UpdateCommand) { c.Enabled = ptr(false) })),
		"https://c.example  v1 by_caller")
	d.want(d.all(0, update(func(c *webhook.UpdateCommand) { c.Enabled, c.Description = ptr(true), ptr("text") })),
		"https://c.example  v1")
	if e := d.get("shop"); e.Description != "text" || e.Types != nil || e.Disabled != "" || !e.DisabledAt.IsZero() {
		t.Errorf("%+v", e)
	}
	first := d.get("shop").ID
	remove := &webhook.DeleteCommand{Caller: caller, Name: "shop"}
	// Recreated within one command, and by several commands: the id, and so the secret, changes each time.
	d.want(d.all(0, together{remove, create("shop", "https://d.example")}), "https://d.example  v1")
	if e := d.get("shop"); e.URL != "https://d.example" || e.Description != "" {
		t.Errorf("%+v", e)
	}
	d.want(d.all(0, together{create("brief", "https://d.example"),
		&webhook.DeleteCommand{Caller: caller, Name: "brief"}}), "https://d.example  v1")
	if _, err := d.reader.Endpoint(t.Context(), webhook.Key{Tenant: 1, Name: "brief"}); !fault.Is(err,
		webhook.NotFound) {
		t.Errorf("an endpoint created and deleted in one command exists: %v", err)
	}
	second := d.get("shop").ID
	d.want(d.all(0, remove), "https://d.example  v1")
	d.want(d.all(0, remove, update(func(*webhook.UpdateCommand) {}), create("shop", "https://e.example"), remove,
		remove),
		"WEBHOOK_ENDPOINT_NOT_FOUND", "WEBHOOK_ENDPOINT_NOT_FOUND", "https://e.example  v1", "https://e.example  v1",
		"WEBHOOK_ENDPOINT_NOT_FOUND")
	d.want(d.all(0, create("shop", "https://f.example")), "https://f.example  v1")
	if third := d.get("shop").ID; first == second || second == third {
		t.Errorf("ids %d, %d, %d", first, second, third)
	}
	if _, err := d.reader.Endpoint(t.Context(), webhook.Key{Tenant: 2, Name: "shop"}); !fault.Is(err,
		webhook.NotFound) {
		t.Errorf("another tenant sees it: %v", err)
	}
}

// Concurrent repeats at two servers replace the secret once.
func TestConcurrentRotationsReplaceTheSecretOnce(t *testing.T) {
	d := newFixture(t)
	d.all(0, create("shop", "https://a.example"))
	rotate := func(version int32) *webhook.RotateCommand {
		return &webhook.RotateCommand{Caller: caller, Name: "shop", Version: version, Overlap: time.Hour}
	}
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() { d.all(i%2, rotate(1)) })
	}
	wg.Wait()
	d.want(d.all(0, rotate(1), rotate(3)), "https://a.example  v2 existed", "WEBHOOK_SECRET_REPLACED")
	e := d.get("shop")
	if left := time.Until(e.PreviousExpiresAt); left < 59*time.Minute || left > 61*time.Minute {
		t.Errorf("the previous secret signs for %v", left)
	}
	d.want(d.all(1, rotate(2), rotate(1)), "https://a.example  v3", "WEBHOOK_SECRET_REPLACED")
}

func TestConcurrentCreatesMakeOneEndpoint(t *testing.T) {
	d := newFixture(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	count := map[string]int{}
	for i := range 60 {
		wg.Go(func() {
			for n := range 5 {
				got := d.all(i%2, create(fmt.Sprint("shop", n), fmt.Sprintf("https://%d.example", i%3)))
				mu.Lock()
				count[strings.TrimLeft(strings.SplitAfter(got[0],
					".example")[len(strings.SplitAfter(got[0], ".example"))-1], " ")]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if count["v1"] != 5 || count["v1 existed"] != 5*19 || count["WEBHOOK_ENDPOINT_EXISTS_DIFFERENT"] != 5*40 {
		t.Errorf("%v", count)
	}
}

// Two servers create endpoints at a time, each in batches of several: a tenant never has more than the limit.
func TestATenantHasAtMostAHundredEndpoints(t *testing.T) {
	d := newFixture(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	count := map[string]int{}
	for i := range 30 {
		wg.Go(func() {
			var several []commit.Command[*webhook.Tx]
			for n := range 5 {
				several = append(several, create(fmt.Sprintf("shop-%d-%d", i, n), "https://a.example"))
			}
			got := d.all(i%2, several...)
			mu.Lock()
			defer mu.Unlock()
			for _, end := range got {
				count[end]++
			}
		})
	}
	wg.Wait()
	if made, full := count["https://a.example  v1"], count["WEBHOOK_ENDPOINTS_FULL"]; made != webhook.MaxEndpoints ||
		full != 50 {
		t.Errorf("%v", count)
	}
	names, _, err := d.reader.List(t.Context(), 1, 1, "")
	if err != nil {
		t.Fatal(err)
	}
	name := names[0].Name
	d.want(d.all(0, create(name, "https://a.example"), create("one-more", "https://a.example")),
		"https://a.example  v1 existed", "WEBHOOK_ENDPOINTS_FULL")
	d.want(d.all(0, &webhook.DeleteCommand{Caller: caller, Name: name}), "https://a.example  v1")
	d.want(d.all(0, create("one-more", "https://a.example")), "https://a.example  v1")
	d.want(d.all(1, &webhook.DeleteCommand{Caller: caller, Name: "one-more"}, create("one-more", "https://b.example")),
		"https://a.example  v1", "https://b.example  v1")
	result := d.engines[0].DoAll(t.Context(), []flow.Submission{{Tenant: 1, RequestID: "r", Rows: 1, Bytes: 400,
		Command: flow.Webhook(create("too-many", "https://a.example"))}})[0]
	if f := fault.Of(result.Err); f == nil || len(f.Fields) != 1 || f.Fields[0].Path != "name" {
		t.Errorf("%+v", result)
	}
}

func TestFailingEndpointsAreDisabled(t *testing.T) {
	d := newFixture(t)
	d.all(0, create("shop", "https://a.example"))
	e := d.get("shop")
	saw := func(change func(*webhook.Observation)) *webhook.ObserveCommand {
		o := webhook.Observation{Key: e.Key, ID: e.ID}
		if change != nil {
			change(&o)
		}
		return &webhook.ObserveCommand{Observation: o}
	}
	ok := func(o *webhook.Observation) { o.OK = true }
	const works = "https://a.example  v1"
	d.want(d.all(0, saw(ok), saw(func(o *webhook.Observation) { o.ID++ })), "nothing", "nothing")
	// Failures every 20 hours: disabled after five days, not before.
	for range 6 {
		d.want(d.all(0, saw(nil)), works)
		d.age(20 * time.Hour)
	}
	d.want(d.all(1, saw(nil)), "disabled failing")
	d.want(d.all(1, saw(nil), saw(ok)), "nothing", "nothing")
	enable := &webhook.UpdateCommand{Caller: caller, Name: "shop", Enabled: ptr(true)}
	d.want(d.all(0, enable, saw(nil)), works, works)
	// A success resets the failures, and so does a long gap.
	d.age(4 * 24 * time.Hour)
	d.want(d.all(0, saw(nil)), works)
	for range 4 {
		d.age(23 * time.Hour)
		d.want(d.all(0, saw(nil)), works)
	}
	d.want(d.all(0, saw(ok), saw(ok)), works, "nothing")
	d.age(4 * 24 * time.Hour)
	d.want(d.all(0, saw(nil)), works)
	d.want(d.all(0, saw(func(o *webhook.Observation) { o.Gone = true })), "disabled gone")
}

func TestEndpointsAreListedByName(t *testing.T) {
	d := newFixture(t)
	for i := range 5 {
		d.all(0, create(fmt.Sprint("shop", i), "https://a.example"))
	}
	var names []string
	var token string
	for {
		page, next, err := d.reader.List(t.Context(), 1, 2, token)
		if err != nil || len(page) > 2 {
			t.Fatal(page, err)
		}
		for _, e := range page {
			names = append(names, e.Name)
		}
		if token = next; token == "" {
			break
		}
	}
	d.want(names, "shop0", "shop1", "shop2", "shop3", "shop4")
	if page, _, err := d.reader.List(t.Context(), 2, 10, ""); err != nil || len(page) > 0 {
		t.Errorf("another tenant sees %v, %v", page, err)
	}
}

func TestWants(t *testing.T) {
	for _, c := range []struct {
		e    webhook.Endpoint
		want bool
	}{{webhook.Endpoint{}, true}, {webhook.Endpoint{Types: []string{"a", "x"}},
		true}, {webhook.Endpoint{Types: []string{"a"}}, false},
		{webhook.Endpoint{Disabled: webhook.Gone}, false}} {
		if got := c.e.Wants("x"); got != c.want {
			t.Errorf("%+v: %v", c.e, got)
		}
	}
}
