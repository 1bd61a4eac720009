package template_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/notify/template"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

type books struct{ *template.Tx }

func (b books) Participants() []commit.Participant { return []commit.Participant{b.Tx} }

type on struct{ commit.Command[*template.Tx] }

func (o on) Need(b books)               { o.Command.Need(b.Tx) }
func (o on) Apply(b books) (any, error) { return o.Command.Apply(b.Tx) }

type engine struct {
	t *testing.T
	*commit.Engine[books]
	reader *template.Reader
}

// start starts an engine with its own pool, like a server process.
func start(t *testing.T, db *pgtest.DB) engine {
	t.Helper()
	pool, err := pg.Open(t.Context(), db.AllDSN, 6)
	if err != nil {
		t.Fatal(err)
	}
	e := commit.New(commit.Config[books]{Pool: pool, NewTx: func(bool) books { return books{template.NewTx()} },
		Instance: "test", NameConstraints: template.NameConstraints()})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := e.Drain(ctx); err != nil {
			t.Error(err)
		}
		pool.Close()
	})
	return engine{t, e, template.NewReader(pool)}
}

func (e engine) do(c commit.Command[*template.Tx]) (commit.Outcome, error) {
	return e.Do(context.Background(), commit.Submission[books]{Tenant: 1, RequestID: "r", Command: on{c}, Rows: 1,
		Bytes: 100})
}

func (e engine) put(channel send.Channel, name, locale string, d template.Definition) template.Put {
	e.t.Helper()
	c, err := template.NewPut(caller, channel, name, locale, &d)
	if err != nil {
		e.t.Fatal(err)
	}
	out, err := e.do(c)
	if err != nil {
		e.t.Fatal(err)
	}
	return out.Answer.(template.Put)
}

var caller = commit.Caller{Tenant: 1, Principal: "p", RequestID: "r"}

// write renders a template, as a SendCommand does.
type write struct {
	template.Name
	values map[string]any
	use    *template.Use
}

func (w *write) Need(tx *template.Tx) { w.use = tx.Want(w.Name) }
func (w *write) Apply(*template.Tx) (any, error) {
	return w.use.Render(w.values, map[string]any{"extra": "E"})
}

func (e engine) write(n template.Name, values map[string]any) (template.Rendered, error) {
	n.Tenant = 1
	out, err := e.do(&write{Name: n, values: values})
	if err != nil {
		return template.Rendered{}, err
	}
	return out.Answer.(template.Rendered), nil
}

func says(text string) template.Definition {
	return template.Definition{Text: text, Variables: []template.Variable{{Name: "name", Kind: template.String}}}
}

func TestRenderUsesTheNewestVersionInTheNearestLocale(t *testing.T) {
	t.Parallel()
	e := start(t, pgtest.New(t))
	e.put(send.SMS, "hello", "en", says("Hello {{.name}}"))
	e.put(send.SMS, "hello", "zh", says("你好 {{.name}}"))
	e.put(send.SMS, "hello", "zh-Hant", says("您好 {{.name}}"))
	if p := e.put(send.SMS, "hello", "en", says("Hi {{.name}}")); p.Version != 4 || !p.Default {
		t.Fatal(p)
	}
	for _, c := range []struct {
		locale   string
		version  int32
		text, by string
	}{
		{"en", 0, "Hi Ada", "hello@4"}, {"en-GB", 0, "Hi Ada", "hello@4"}, {"zh-Hant-TW", 0, "您好 Ada",
			"hello@3"}, {"zh-TW", 0, "您好 Ada", "hello@3"}, {"zh-CN", 0, "你好 Ada", "hello@2"},
		{"fr", 0, "Hi Ada", "hello@4"}, {"", 0, "Hi Ada", "hello@4"}, {"zh", 1, "Hello Ada", "hello@1"},
	} {
		for range 2 { // the second time from the cache
			got, err := e.write(template.Name{Channel: send.SMS, Name: "hello", Locale: c.locale, Version: c.version},
				map[string]any{"name": "Ada"})
			if err != nil || got.Content.Text != c.text || got.Template != c.by {
				t.Errorf("%s: %q from %s, %v", c.locale, got.Content.Text, got.Template, err)
			}
		}
	}
	for _, n := range []template.Name{{Channel: send.Email, Name: "hello"}, {Channel: send.SMS, Name: "hallo"},
		{Channel: send.SMS, Name: "hello", Version: 5}} {
		if _, err := e.write(n, nil); !fault.Is(err, template.NotFound) {
			t.Errorf("%v: %v", n, err)
		}
	}
	_, err := e.write(template.Name{Channel: send.SMS, Name: "hello"}, map[string]any{"nom": "Ada"})
	if f := fault.Of(err); !fault.Is(err, template.VariablesInvalid) || len(f.Fields) != 2 ||
		f.Fields[0].Path != "template.variables.name" || f.Fields[1].Path != "template.variables.nom" {
		t.Error(err)
	}
	d := says("{{.extra}}{{.name}}")
	d.Variables = append(d.Variables, template.Variable{Name: "extra", Kind: template.String})
	e.put(send.SMS, "offered", "en", d)
	if got, err := e.write(template.Name{Channel: send.SMS, Name: "offered"},
		map[string]any{"name": "A", "extra": "mine"}); err != nil || got.Content.Text != "EA" {
		t.Error(got, err)
	}
}

func TestUnchangedPutCreatesNoVersion(t *testing.T) {
	t.Parallel()
	e := start(t, pgtest.New(t))
	first := e.put(send.SMS, "a", "en", says("x"))
	if again := e.put(send.SMS, "a", "EN", says("x")); again != first {
		t.Error(again, first)
	}
	if p := e.put(send.SMS, "a", "de", says("x")); p.Version != 2 || p.Default {
		t.Error(p)
	}
	c, err := template.NewPut(caller, send.SMS, "a", "de", new(says("x")))
	if err != nil {
		t.Fatal(err)
	}
	c.Default = true
	if out, err := e.do(c); err != nil ||
		out.Answer.(template.Put) != (template.Put{Version: 3, Locale: "de", Default: true}) {
		t.Error(out, err)
	}
	if out, err := e.do(c); err != nil || !out.Existed {
		t.Error(out, err)
	}
	if p := e.put(send.SMS, "a", "en", says("y")); p.Version != 4 {
		t.Error(p)
	}
	if p := e.put(send.SMS, "a", "en", says("x")); p.Version != 5 {
		t.Error("the text of an older version must be a new version:", p)
	}
}

func TestDeletedTemplateRendersNothingButCanBeRead(t *testing.T) {
	t.Parallel()
	e := start(t, pgtest.New(t))
	remove := func(locale string) (commit.Outcome, error) {
		return e.do(&template.DeleteCommand{Caller: caller, Channel: send.SMS, Name: "a", Locale: locale})
	}
	if _, err := remove(""); !fault.Is(err, template.NotFound) {
		t.Error(err)
	}
	e.put(send.SMS, "a", "en", says("x"))
	e.put(send.SMS, "a", "de", says("y"))
	if _, err := remove("en"); !fault.Is(err, fault.FieldInvalid) {
		t.Error("the default locale was deleted:", err)
	}
	if _, err := remove("de"); err != nil {
		t.Error(err)
	}
	if got, err := e.write(template.Name{Channel: send.SMS, Name: "a", Locale: "de"},
		map[string]any{"name": "n"}); err != nil || got.Content.Text != "x" {
		t.Error(got, err)
	}
	if out, err := remove("de"); err != nil || !out.Existed {
		t.Error(out, err)
	}
	if _, err := remove(""); err != nil {
		t.Error(err)
	}
	if out, err := remove(""); err != nil || !out.Existed {
		t.Error(out, err)
	}
	for _, n := range []template.Name{{Channel: send.SMS, Name: "a"}, {Channel: send.SMS, Name: "a", Version: 1}} {
		if _, err := e.write(n, map[string]any{"name": "n"}); !fault.Is(err, template.NotFound) {
			t.Error(err)
		}
	}
	if v, err := e.reader.Get(t.Context(),
		template.Name{Tenant: 1, Channel: send.SMS, Name: "a", Version: 2}); err != nil ||
		v[0].Definition.Text != "y" || v[0].DeletedAt.IsZero() {
		t.Error(v, err)
	}
	if p := e.put(send.SMS, "a", "fr", says("x")); p.Version != 3 || !p.Default {
		t.Error("a recreated template must begin anew:", p)
	}
	if v, err := e.reader.Get(t.Context(), template.Name{Tenant: 1, Channel: send.SMS, Name: "a"}); err != nil ||
		len(v) != 1 || v[0].Locale != "fr" {
		t.Error(v, err)
	}
}

func TestListAndPreview(t *testing.T) {
	t.Parallel()
	e := start(t, pgtest.New(t))
	for _, name := range []string{"c", "a", "b"} {
		e.put(send.SMS, name, "en", says(name+" {{.name}}"))
	}
	e.put(send.Email, "a", "de", template.Definition{Subject: "s", HTML: "<b>{{.name}}</b>",
		Variables: says("").Variables})
	var names []string
	for token := ""; ; {
		list, next, err := e.reader.List(t.Context(), 1, "", 2, token)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range list {
			names = append(names, fmt.Sprint(l.Channel, " ", l.Name, l.Locales, l.Versions))
		}
		if token = next; token == "" {
			break
		}
	}
	if want := []string{"email a[de] [1]", "sms a[en] [1]", "sms b[en] [1]", "sms c[en] [1]"}; !slices.Equal(names,
		want) {
		t.Error(names)
	}
	if list, _, err := e.reader.List(t.Context(), 2, "", 2, ""); err != nil || len(list) != 0 {
		t.Error("another tenant sees", list, err)
	}
	n := template.Name{Tenant: 1, Channel: send.Email, Name: "a", Locale: "de-AT"}
	if r, p, err := e.reader.Preview(t.Context(), n, nil, map[string]any{"name": "<i>"}); err != nil || p != nil ||
		r.Content.HTML != "<b>&lt;i&gt;</b>" || r.Template != "a@1" || r.Locale != "de" {
		t.Error(r, p, err)
	}
	if _, p, err := e.reader.Preview(t.Context(), n, nil, map[string]any{"x": "<i>"}); err != nil || len(p) != 2 {
		t.Error(p, err)
	}
	if _, p, err := e.reader.Preview(t.Context(), n, &template.Definition{Subject: "{{.x}}", Text: "{{.y}}"},
		nil); err != nil || len(p) != 2 {
		t.Error(p, err)
	}
	if _, _, err := e.reader.Preview(t.Context(), template.Name{Tenant: 2, Channel: send.Email, Name: "a"}, nil,
		nil); !fault.Is(err, template.NotFound) {
		t.Error(err)
	}
}

// Concurrent puts of one template: different texts get different version numbers, equal texts the same.
func TestConcurrentPutsOfOneTemplate(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	engines := []engine{start(t, db), start(t, db)}
	const texts = 20
	locales := strings.Fields("ar bg ca cs da de el en es et fi fr he hi hr hu id it ja ko")
	got := make([]int32, 2*texts)
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() {
			c, err := template.NewPut(caller, send.SMS, "a", locales[i/2], new(says(fmt.Sprint("text ", i/2))))
			if err != nil {
				t.Error(err)
				return
			}
			out, err := engines[i%2].do(c)
			if err != nil {
				t.Error(err)
				return
			}
			got[i] = out.Answer.(template.Put).Version
		})
	}
	wg.Wait()
	for i := 0; i < len(got); i += 2 {
		if got[i] != got[i+1] {
			t.Errorf("equal texts have versions %d and %d", got[i], got[i+1])
		}
	}
	slices.Sort(got)
	if distinct := slices.Compact(got); len(distinct) != texts || distinct[0] != 1 || distinct[texts-1] != texts {
		t.Error(distinct)
	}
}

func TestInvalidTemplateIsNotStored(t *testing.T) {
	t.Parallel()
	_, err := template.NewPut(caller, send.SMS, "A b", "nonsense!",
		&template.Definition{Text: "{{.x}}", OnUnknown: "x"})
	f := fault.Of(err)
	if !fault.Is(err, fault.FieldInvalid) || len(f.Fields) != 3 || f.Fields[2].Path != "definition.on_unknown" {
		t.Error(err, f.Fields)
	}
	_, err = template.NewPut(caller, send.SMS, "a", "en",
		&template.Definition{Text: strings.Repeat("{{.x}}", 30), Variables: make([]template.Variable, 30)})
	if f = fault.Of(err); f == nil || len(f.Fields) != 20 || !strings.HasPrefix(f.Message, f.Fields[0].Path+": ") {
		t.Error(err)
	}
}
