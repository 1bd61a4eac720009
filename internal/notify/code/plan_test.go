package code_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/ledgerd/ledgerd/internal/clean"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/code"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/notify/template"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// The cost of a call does not grow with the number of codes and templates, even with plans cached on empty tables.
func TestPlansOfEmptyTablesStayRightOnFullOnes(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.SkipChecks() // loaded codes have no messages
	super := pgtest.Pool(t, db.SuperDSN)
	exec := func(sql string) {
		t.Helper()
		if _, err := super.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	pgtest.StopAutovacuum(t, super)
	exec("analyze")
	pool, err := pg.Open(t.Context(), db.AllDSN, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	e := flow.NewSendingEngine(pool, "test", nil, nil, &notify.Outbox{Master: secret.New()})
	defer e.Drain(context.Background())
	do := func(c flow.Command) {
		t.Helper()
		if _, err := e.Do(context.Background(),
			flow.Submission{Tenant: 1, RequestID: "r", Command: c, Rows: 1, Bytes: 1}); err != nil {
			t.Fatal(err)
		}
	}
	put := func(name, text string) {
		t.Helper()
		c, err := template.NewPut(caller, send.SMS, name, "en",
			&template.Definition{Text: text, Variables: []template.Variable{{Name: "code", Kind: template.String}}})
		if err != nil {
			t.Fatal(err)
		}
		do(flow.Template(c))
	}
	reader := template.NewReader(pool)
	number := 0
	calls := map[string]func(name string){
		"send": func(name string) {
			number++
			c := request(fmt.Sprintf("+4915%08d", number*10_000), "123456")
			c.Template.Name = name
			do(c)
			c.Interval = 0
			do(c) // looks up the message of the previous code
		},
		"try": func(string) { do(flow.Code(try(fmt.Sprintf("+4915%08d", number*10_000), "000000"))) },
		"put": func(name string) { put(name, fmt.Sprint("{{.code}} ", number)) },
		"get": func(name string) {
			if _, err := reader.Get(t.Context(), template.Name{Tenant: 1, Channel: send.SMS, Name: name}); err != nil {
				t.Fatal(err)
			}
		},
		"list": func(string) {
			if list, _, err := reader.List(t.Context(), 1, "", 10, ""); err != nil || len(list) == 0 {
				t.Fatal(list, err)
			}
		},
		"delete": func(name string) {
			do(flow.Template(&template.DeleteCommand{Caller: caller, Channel: send.SMS, Name: name}))
			put(name, "{{.code}} again")
		},
		"clean": func(string) {
			codes, cleaner := code.Codes(), clean.Cleaner{Pool: pool, Metrics: clean.NewMetrics(nil)}
			if _, err := cleaner.Clean(t.Context(), &codes); err != nil {
				t.Fatal(err)
			}
		},
	}
	order := []string{"put", "send", "try", "get", "list", "delete", "clean"}
	for range 12 { // plans are cached from the sixth run on
		for _, kind := range order {
			calls[kind]("first")
		}
	}
	exec(`insert into notify_codes select 1, 'login', substr(sha256(i::text::bytea), 1, 16), 'sms', '+86****', 'open',
		substr(sha256('x'), 1, 16), sha256('x'), 0, 5, null, null, array[now()], now() + interval '5 min',
		now() + interval '1 day', 'p', 'r' from generate_series(1, 100000) i`)
	exec(`insert into notify_templates select 1, 'sms', 'old' || i, 'en', 1, '{en}', '{1}', now()
		from generate_series(1, 50000) i`)
	exec(`insert into notify_template_versions select 1, 'sms', 'old' || i, 1, 'en',
		'{"text": "{{.code}}", "variables": [{"name": "code", "kind": "string"}]}', sha256('y'), 'p', 'r', now()
		from generate_series(1, 50000) i`)
	for _, kind := range order {
		touched := pgtest.TouchedBy(t, "^notify_(code|template)", super, pool,
			func() { calls[kind]("old4711") })
		t.Logf("%s touches %d blocks", kind, touched)
		if touched > 150 {
			t.Errorf("%s touches %d blocks", kind, touched)
		}
	}
}
