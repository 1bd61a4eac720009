package template

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// order is a realistic e-mail template.
var order = Definition{
	Subject: `Order {{.number}} of {{date .placed}}`,
	Text: `Dear {{.name}},
{{range $i, $line := .lines}}{{if $i}}
{{end}}{{$line.count}} x {{$line.name}}: {{$line.price}}{{else}}nothing{{end}}
{{plural (len .lines) "one" "one item" "other" "several items"}}, {{number .total}} {{asset .total}}` +
		`, paid {{.placed}}.{{if .note}}
Note: {{.note}}{{end}}`,
	HTML: `<p title="{{.name}}">Dear {{.name}}</p>{{range .lines}}<b>{{.name}}</b>{{end}}<a href="{{.link}}">see</a>`,
	Variables: []Variable{
		{Name: "number", Kind: Integer}, {Name: "name", Kind: String, MaxLength: 40}, {Name: "placed", Kind: Time,
			Zone: "Asia/Shanghai"},
		{Name: "lines", Kind: Record, List: true, MaxItems: 5, Fields: []Variable{
			{Name: "name", Kind: String}, {Name: "count", Kind: Integer}, {Name: "price", Kind: Amount, Asset: "CNY"}}},
		{Name: "total", Kind: Amount}, {Name: "link", Kind: URL},
		{Name: "note", Kind: String, Optional: true, Multiline: true},
	},
}

func values() map[string]any {
	return map[string]any{
		"number": float64(17), "name": `Ada <b>&"O'Hara"`, "placed": "2026-01-31T16:30:00Z",
		"lines": []any{
			map[string]any{"name": "Tea & cake", "count": "2", "price": "1234.50"},
			map[string]any{"name": "Pot", "count": 1.0, "price": map[string]any{"amount": "0.10", "asset": "USD"}},
		},
		"total": map[string]any{"amount": "12345678901234567890.10", "asset": "CNY"},
		"link":  "https://example.com/a?b=1&c=%202",
	}
}

func compiled(t *testing.T, d *Definition, channel send.Channel, locale string) *Compiled {
	t.Helper()
	c, problems := compile(d, channel, locale)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return c
}

func TestRenderEmail(t *testing.T) {
	t.Parallel()
	got, problems := compiled(t, &order, send.Email, "de").Render(values())
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	if want := "Order 17 of 01.02.2026"; got.Subject != want {
		t.Errorf("%q, want %q", got.Subject, want)
	}
	text := "Dear Ada <b>&\"O'Hara\",\n2 x Tea & cake: 1.234,50\u00a0CNY\n1 x Pot: 0,10\u00a0USD\n" +
		"several items, 12.345.678.901.234.567.890,10 CNY, paid 01.02.2026 00:30."
	if got.Text != text {
		t.Errorf("%q, want %q", got.Text, text)
	}
	html := `<p title="Ada &lt;b&gt;&amp;&#34;O&#39;Hara&#34;">Dear Ada &lt;b&gt;&amp;&#34;O&#39;Hara&#34;</p><b>Tea ` +
		`&amp; cake</b><b>Pot</b><a href="https://example.com/a?b=1&amp;c=%202">see</a>`
	if got.HTML != html {
		t.Errorf("%q, want %q", got.HTML, html)
	}
}

func TestLocalesFormatNumbersAndTimes(t *testing.T) {
	t.Parallel()
	d := Definition{Text: `{{.a}}|{{number .n}}|{{.t}}|{{plural .n "one" "eins" "few" "wenige" "other" ` +
		`"viele"}}|{{.p}}`, Variables: []Variable{
		{Name: "a", Kind: Amount, Asset: "INR"}, {Name: "n", Kind: Integer}, {Name: "t", Kind: Time}, {Name: "p",
			Kind: Time, Pattern: "d'.' MMM' yyyy"}}}
	if p := d.Check(send.SMS); len(p) != 1 || p[0].Path != "variables[3].pattern" {
		t.Fatal(p)
	}
	d.Variables[3].Pattern = "d/M yy 'o''clock' h:mm a"
	if p := d.Check(send.SMS); len(p) > 0 {
		t.Fatal(p)
	}
	for locale, want := range map[string]string{
		"en-US":      "1,234,567.50\u00a0INR|2|01/31/2026 09:05|viele|31/1 26 o'clock 9:05 AM",
		"de":         "1.234.567,50\u00a0INR|2|31.01.2026 09:05|viele|31/1 26 o'clock 9:05 AM",
		"hi":         "12,34,567.50\u00a0INR|2|31/01/2026 09:05|viele|31/1 26 o'clock 9:05 AM",
		"fr":         "1\u00a0234\u00a0567,50\u00a0INR|2|31/01/2026 09:05|viele|31/1 26 o'clock 9:05 AM",
		"pl":         "1\u00a0234\u00a0567,50\u00a0INR|2|31.01.2026 09:05|wenige|31/1 26 o'clock 9:05 AM",
		"zh-Hant-TW": "1,234,567.50\u00a0INR|2|2026/1/31 09:05|viele|31/1 26 o'clock 9:05 AM",
	} {
		got, problems := compiled(t, &d, send.SMS,
			locale).Render(map[string]any{"a": "1234567.50", "n": int64(2), "t": "2026-01-31T09:05:00+08:00",
			"p": "2026-01-31T09:05:00+08:00"})
		if len(problems) > 0 || got.Text != want {
			t.Errorf("%s: %q, want %q, %v", locale, got.Text, want, problems)
		}
	}
}

func TestNumbersOfAnyLengthAreFormattedExactly(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ locale, of, want string }{
		{"en", "99999999999999999999999999999999999999", "99,999,999,999,999,999,999,999,999,999,999,999,999"},
		{"en", "-1234.000000000000000001", "-1,234.000000000000000001"}, {"en", "999", "999"}, {"en", "1000", "1,000"},
		{"en", "0.5", "0.5"},
		{"es", "12345", "12.345"}, {"hi", "1234567", "12,34,567"}, {"de-CH", "1234567.5", "1’234’567.5"},
		{"fa", "1234", "۱٬۲۳۴"},
	} {
		if got := learnDigits(mustLocale(t, c.locale)).format(c.of); got != c.want {
			t.Errorf("%s %s: %q, want %q", c.locale, c.of, got, c.want)
		}
	}
}

func TestAllInvalidValuesAreReported(t *testing.T) {
	t.Parallel()
	c := compiled(t, &order, send.Email, "en")
	for _, x := range []struct {
		path  string
		value any
	}{
		{"number", 1.5}, {"number", "1e3"}, {"number", "+1"}, {"number", 1e17}, {"number", true}, {"number", nil},
		{"name", 7.0}, {"name", strings.Repeat("ä", 41)}, {"name", "a\r\nBcc: x"}, {"name", "a\x00"},
		{"name", "a\u2028b"}, {"name", "\xff"},
		{"placed", "yesterday"}, {"placed", "2026-01-30"}, {"placed", 0.0},
		{"total", "12.30"}, {"total", 12.3}, {"total", map[string]any{"amount": "1e5", "asset": "CNY"}},
		{"total", map[string]any{"amount": "1", "asset": "<b>"}},
		{"total", map[string]any{"amount": "1", "asset": "CNY", "x": "y"}}, {"total", map[string]any{"asset": "CNY"}},
		{"link", "javascript:alert(1)"}, {"link", "JaVaScRiPt:alert(1)"}, {"link", "data:text/html,x"},
		{"link", "//example.com"}, {"link", "/a"}, {"link", "https://"},
		{"link", "https://user:pass@example.com"}, {"link", "https://example.com/\n"},
		{"link", "https://example.com/\"onclick=x"}, {"link", "mailto:x"},
		{"lines", "none"}, {"lines", []any{1.0}}, {"lines", make([]any, 6)}, {"unknown", "x"},
		{"note", "a\x1b[0m"},
	} {
		v := values()
		v[x.path] = x.value
		got, problems := c.Render(v)
		if len(problems) == 0 || !strings.HasPrefix(problems[0].Path, "variables."+x.path) || got.Text != "" ||
			got.HTML != "" {
			t.Errorf("%s = %v: %v, %v", x.path, x.value, problems, got)
		}
		for _, p := range problems {
			if s, ok := x.value.(string); ok && len(s) > 3 && strings.Contains(p.Text, s) {
				t.Errorf("%s: the problem contains the value: %s", x.path, p.Text)
			}
		}
	}
	v := values()
	delete(v, "name")
	delete(v, "total")
	v["more"] = 1.0
	v["lines"].([]any)[1].(map[string]any)["count"] = "x"
	_, problems := c.Render(v)
	paths := []string{}
	for _, p := range problems {
		paths = append(paths, p.Path)
	}
	slices.Sort(paths)
	if want := []string{"variables.lines[1].count", "variables.more", "variables.name",
		"variables.total"}; !slices.Equal(paths, want) {
		t.Errorf("problems at %v, want %v", paths, want)
	}
}

func TestMissingValuesAreFalseAndEmpty(t *testing.T) {
	t.Parallel()
	d := Definition{Text: `{{if .a}}A{{end}}{{if .t}}T{{end}}{{if .s}}S{{end}}{{if .n}}N{{end}}{{if .l}}L{{end}}{{if ` +
		`.r.x}}R{{end}}[{{.a}}{{.t}}{{.s}}{{number .a}}{{date .t}}{{.r.x}}]`}
	for name, k := range map[string]Kind{"a": Amount, "t": Time, "s": String, "n": Integer, "r": Record} {
		v := Variable{Name: name, Kind: k, Optional: true}
		if k == Record {
			v.Fields = []Variable{{Name: "x", Kind: String}}
		}
		d.Variables = append(d.Variables, v)
	}
	d.Variables = append(d.Variables, Variable{Name: "l", Kind: Bool, List: true, Optional: true})
	got, problems := compiled(t, &d, send.SMS, "en").Render(nil)
	if got.Text != "[]" || problems != nil {
		t.Error(got.Text, problems)
	}
}

// A template that does more than is allowed is refused before it is stored.
func TestForbiddenTemplatesAreRefused(t *testing.T) {
	t.Parallel()
	vars := []Variable{
		{Name: "s", Kind: String}, {Name: "m", Kind: String, Multiline: true}, {Name: "n", Kind: Integer}, {Name: "a",
			Kind: Amount}, {Name: "t", Kind: Time},
		{Name: "l", Kind: String, List: true, MaxItems: 1000}, {Name: "k", Kind: String, List: true, MaxItems: 1},
		{Name: "r", Kind: Record, List: true, Fields: []Variable{{Name: "x", Kind: String}}},
	}
	for _, text := range []string{
		`{{.unknown}}`, `{{$.unknown}}`, `{{.s.Foo}}`, `{{.a.String}}`, `{{.t.Add}}`, `{{.}}`, `{{$}}`, `{{.l}}`,
		`{{.r}}`, `{{range .s}}{{end}}`, `{{range .n}}{{end}}`,
		`{{range 1000000000}}{{end}}`, `{{range $i := 10}}{{end}}`,
		`{{range .l}}{{range $.l}}{{range $.l}}{{end}}{{end}}{{end}}`, `{{range .l}}{{range $.l}}x{{end}}{{end}}`,
		`{{range .k}}{{range $.k}}{{range $.k}}{{end}}{{end}}{{end}}`,
		`{{define "x"}}{{end}}`, `{{define "x"}}a{{end}}{{template "x"}}`, `{{template "t" .}}`,
		`{{block "x" .}}{{end}}`, `{{call .s}}`, `{{printf "%1000000000d" 1}}`,
		`{{html .s}}`, `{{js .s}}`, `{{index .l 0}}`, `{{slice .s 1}}`, `{{urlquery .s}}`, `{{print .s}}`, `{{len .s}}`,
		`{{lt .s "a"}}`, `{{eq .s 1}}`, `{{eq .a .a}}`,
		`{{$x := .s}}{{$x = "a"}}`, `{{$y}}`, `{{if .s}}{{$z := 1}}{{end}}{{$z}}`, `{{.s "a"}}`, `{{(.s).Foo}}`,
		`{{1.5}}`, `{{'a'}}`, `{{nil}}`, `{{or .s .n}}`, `{{and}}`,
		`{{number .s}}`, `{{date .s}}`, `{{plural .n}}`, `{{plural .s "one" "x"}}`, `{{`, `{{end}}`, `{{if}}`, "\xff",
		"a\x00",
		strings.Repeat(`{{if .s}}`, 17) + strings.Repeat(`{{end}}`, 17), strings.Repeat(`{{if .s}}`, 7000), "{{" +
			strings.Repeat("(", 60000) + "}}",
		`{{with $x := .r}}{{.x}}{{end}}`, `{{range .r}}{{.s}}{{end}}`, `{{break}}`,
		` {{/* nothing */}} {{define "x"}}{{end}}`,
	} {
		d := Definition{Text: text, Variables: vars}
		if p := d.Check(send.SMS); len(p) != 1 || p[0].Path != "text" {
			t.Errorf("%.60q: %v", text, p)
		}
	}
	for _, text := range []string{
		`{{.s}}`, `{{range .l}}{{.}}{{$.s}}{{else}}none{{end}}`, `{{range .l}}{{break}}{{end}}`,
		`{{with .s}}{{.}}{{else}}no{{end}}`, `{{.n | number}}`, `{{if and .s (gt .n 3) (not .l)}}x{{end}}`,
		`{{$x := .s}}{{if .n}}{{$x}}{{end}}`, `{{if or .s .n}}x{{end}}`, `{{or .s "you"}}`,
		`{{range $i, $x := .r}}{{$i}}{{$x.x}}{{end}}`, `{{"{{"}}`, `{{- .s -}}`, `{{/* c */}}{{.m}}`,
		`{{range .l}}{{range $.r}}{{end}}{{end}}`,
	} {
		d := Definition{Text: text, Variables: vars}
		if p := d.Check(send.SMS); len(p) != 0 {
			t.Errorf("%q: %v", text, p)
		}
	}
	for _, subject := range []string{`{{.m}}`, `{{.s}}{{or .m .m}}`, "a\nb", `{{"a\nb"}}`,
		`{{range .l}}{{$.m}}{{end}}`} {
		d := Definition{Subject: subject, Text: "x", Variables: vars}
		if p := d.Check(send.Email); len(p) != 1 || p[0].Path != "subject" {
			t.Errorf("%q: %v", subject, p)
		}
	}
	for _, html := range []string{`<a href="{{.s}}`, `<script>x</script>`, `<SCRIPT src=x>`, `<{{.s}}>`,
		`<a {{if .s}}href="{{end}}">`, `<style>{{.s}}`} {
		d := Definition{Subject: "x", HTML: html, Variables: vars}
		if p := d.Check(send.Email); len(p) == 0 && html != `<a href="{{.s}}` && html != `<style>{{.s}}` &&
			html != `<{{.s}}>` {
			t.Errorf("%q was accepted", html)
		}
	}
}

// Values are escaped everywhere in HTML.
func TestValuesDoNotBecomeHTML(t *testing.T) {
	t.Parallel()
	attacks := []string{`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' onmouseover='x`,
		`javascript:alert(1)`, `</title><b>`, `{{.secret}}`, `expression(alert(1))`, `&lt;b&gt;`, "`x", `--><b>`}
	for _, html := range []string{`<p>{{.s}}</p>`, `<p title="{{.s}}">x</p>`, `<p title='{{.s}}'>x</p>`,
		`<p title={{.s}}>x</p>`, `<title>{{.s}}</title>`, `<!-- {{.s}} -->`, `<textarea>{{.s}}</textarea>`} {
		c := compiled(t, &Definition{Subject: "x", HTML: html, Variables: []Variable{{Name: "s", Kind: String}}},
			send.Email, "en")
		for _, attack := range attacks {
			got, problems := c.Render(map[string]any{"s": attack})
			if len(problems) > 0 {
				continue // refused, which is also safe
			}
			if strings.Contains(got.HTML, "<script") || strings.Contains(got.HTML, "<img") ||
				strings.Contains(got.HTML, "<b>") ||
				strings.Count(got.HTML, `"`) > 2 || strings.Count(got.HTML, `'`) > 2 {
				t.Errorf("%s with %s: %s", html, attack, got.HTML)
			}
		}
	}
	for _, html := range []string{`<a href="{{.s}}">x</a>`, `<img src={{.s}}>`,
		`<p style="background:url('{{.s}}')">x</p>`} {
		c := compiled(t, &Definition{Subject: "x", HTML: html, Variables: []Variable{{Name: "s", Kind: String}}},
			send.Email, "en")
		if got, problems := c.Render(map[string]any{"s": "javascript:alert(1)"}); len(problems) != 1 ||
			problems[0].Path != "html" || got.HTML != "" {
			t.Errorf("%s: %v %v", html, problems, got.HTML)
		}
	}
}

func TestTooLongMessageIsRefused(t *testing.T) {
	t.Parallel()
	vars := []Variable{{Name: "l", Kind: String, List: true, MaxItems: 1000, MaxLength: 10000}}
	long := []any{}
	for range 200 {
		long = append(long, strings.Repeat("x", 1000))
	}
	c := compiled(t, &Definition{Subject: "x", Text: `{{range .l}}{{.}}{{.}}{{.}}{{end}}`, Variables: vars}, send.Email,
		"en")
	if _, p := c.Render(map[string]any{"l": long}); len(p) != 1 || p[0].Path != "text" {
		t.Error(p)
	}
	sms := compiled(t, &Definition{Text: `{{range .l}}{{.}}{{end}}`, Variables: vars}, send.SMS, "en")
	if _, p := sms.Render(map[string]any{"l": []any{strings.Repeat("界", 1601)}}); len(p) != 1 {
		t.Error(p)
	}
	if got, p := sms.Render(map[string]any{"l": []any{strings.Repeat("界", 1600)}}); len(p) != 0 ||
		len(got.Text) != 4800 {
		t.Error(p)
	}
	if _, p := sms.Render(map[string]any{"l": slices.Repeat([]any{strings.Repeat("x", 10000)}, 30)}); len(p) == 0 ||
		!strings.Contains(p[0].Text, "256 KiB") {
		t.Error(p)
	}
}

// The most expensive template allowed renders within the time of a batch.
func TestMostExpensiveTemplateTakesMilliseconds(t *testing.T) {
	text := `.{{range .l}}{{range $.k}}{{if and (eq .x $.s) (gt $.n 3) (lt $.n 4)}}x{{end}}{{end}}{{end}}`
	d := Definition{Text: text, Variables: []Variable{{Name: "l", Kind: Integer, List: true, MaxItems: 70},
		{Name: "s", Kind: String}, {Name: "n", Kind: Integer},
		{Name: "k", Kind: Record, List: true, MaxItems: 70, Fields: []Variable{{Name: "x", Kind: String}}}}}
	l, k := []any{}, []any{}
	for range 70 {
		l, k = append(l, 1.0), append(k, map[string]any{"x": strings.Repeat("y", 200)})
	}
	c := compiled(t, &d, send.SMS, "en")
	took := time.Hour
	for range 5 { // a busy machine interrupts some of them
		start := time.Now()
		if _, p := c.Render(map[string]any{"l": l, "k": k, "s": strings.Repeat("y", 200), "n": 3.0}); len(p) > 0 {
			t.Fatal(p)
		}
		took = min(took, time.Since(start))
	}
	if took > time.Second {
		t.Errorf("the most expensive template took %s", took)
	}
}

func TestProvidersGetTheirVariablesInOrder(t *testing.T) {
	t.Parallel()
	d := Definition{
		Providers: map[string]Provider{
			"aliyun": {ID: "SMS_1", Params: []send.Param{{Name: "code", Value: "{{.code}}"},
				{Name: "sum", Value: "{{number .sum}}"}}},
			"tencent": {ID: "42", Params: []send.Param{{Value: "{{number .sum}}元"}, {Value: " {{.code}} "}}},
		},
		Variables: []Variable{{Name: "code", Kind: String, MaxLength: 10}, {Name: "sum", Kind: Amount, Asset: "CNY"}},
	}
	got, problems := compiled(t, &d, send.SMS, "zh").Render(map[string]any{"code": "012345", "sum": "1234.50"})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	if s := fmt.Sprint(got.Template, got.ParamsFor("aliyun"), got.ParamsFor("tencent"),
		got.ParamsFor("twilio")); s != "map[aliyun:SMS_1 tencent:42] [{code 012345} {sum 1,234.50}] [{ 1,234.50元} "+
		"{ 012345}] []" {
		t.Error(s)
	}
	d.Providers["aliyun"] = Provider{ID: "SMS_1", Params: []send.Param{{Name: "code", Value: "{{.cod}}"}}}
	if p := d.Check(send.SMS); len(p) != 1 || p[0].Path != `provider_templates["aliyun"].params[0].value` {
		t.Error(p)
	}
}

func TestInvalidDefinitionsAreRefused(t *testing.T) {
	t.Parallel()
	p9 := int16(9)
	for path, d := range map[string]Definition{
		"text": {}, "subject": {Text: "x", Subject: "x"}, "html": {Text: "x", HTML: "x"}, "priority": {Text: "x",
			Priority: &p9}, "on_unknown": {Text: "x", OnUnknown: "maybe"},
		"max_attempts": {Text: "x", MaxAttempts: 101}, "give_up_after": {Text: "x", LifeMs: -1},
		"variables[0].name": {Text: "x", Variables: []Variable{{Name: "X", Kind: String}}},
		"variables[1].name": {Text: "x",
			Variables: []Variable{{Name: "x", Kind: String}, {Name: "x", Kind: Bool}}},
		"variables[0].kind": {Text: "x", Variables: []Variable{{Name: "x"}}},
		"variables[0].zone": {Text: "x",
			Variables: []Variable{{Name: "x", Kind: Time, Zone: "../../etc/passwd"}}},
		"variables[0].max_length": {Text: "x", Variables: []Variable{{Name: "x", Kind: Integer, MaxLength: 5}}},
		"variables[0].fields":     {Text: "x", Variables: []Variable{{Name: "x", Kind: Record}}},
		"variables[0].fields[0]": {Text: "x",
			Variables: []Variable{{Name: "x", Kind: Record,
				Fields: []Variable{{Name: "y", Kind: String, List: true}}}}},
		"variables[0].max_items":     {Text: "x", Variables: []Variable{{Name: "x", Kind: String, MaxItems: 5}}},
		"variables":                  {Text: "x", Variables: make([]Variable, MaxVariables+1)},
		`provider_templates[""]`:     {Text: "x", Providers: map[string]Provider{"": {ID: "x"}}},
		`provider_templates["a"].id`: {Text: "x", Providers: map[string]Provider{"a": {ID: "a\nb"}}},
	} {
		if p := d.Check(send.SMS); len(p) == 0 || p[0].Path != path {
			t.Errorf("%s: %v", path, p)
		}
	}
	if p := (&Definition{Text: "x"}).Check(send.Webhook); len(p) != 1 || p[0].Path != "channel" {
		t.Error(p)
	}
	if p := (&Definition{HTML: "x", Subject: " "}).Check(send.Email); len(p) != 0 {
		t.Error(p) // an empty subject is found on rendering
	}
}

func TestEmptyMessageIsRefused(t *testing.T) {
	t.Parallel()
	empty := "{{.x}} "
	for _, c := range []struct {
		channel send.Channel
		Definition
		refused bool
	}{
		{send.SMS, Definition{Text: empty}, true}, {send.SMS,
			Definition{Text: empty, Providers: map[string]Provider{"a": {ID: "1"}}}, false},
		{send.Email, Definition{Subject: "s", Text: empty}, true},
		{send.Email, Definition{Subject: "s", Text: empty, HTML: "h"}, false},
		{send.Push, Definition{Subject: empty, Text: empty}, true},
		{send.Push, Definition{Subject: "s", Text: empty}, false},
	} {
		c.Variables = []Variable{{Name: "x", Kind: String, Optional: true}}
		_, problems := compiled(t, &c.Definition, c.channel, "en").Render(nil)
		if (len(problems) == 1 && problems[0].Path == "text") != c.refused || len(problems) > 1 {
			t.Errorf("%s %+v: %v", c.channel, c.Definition, problems)
		}
	}
}

// No input panics, loops, or reads undeclared variables.
func FuzzText(f *testing.F) {
	for _, s := range []string{order.Text, order.HTML, order.Subject, `{{range $i, $x := .lines}}{{break}}{{end}}`,
		`{{with .note}}{{.}}{{end}}`, `<style>p{color:{{.name}}}</style>`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, d := range []Definition{{Text: s, Subject: "x", Variables: order.Variables},
			{HTML: s, Subject: "x", Variables: order.Variables}, {Subject: s, Text: "x", Variables: order.Variables}} {
			c, problems := compile(&d, send.Email, "en")
			if (c == nil) != (len(problems) > 0) {
				t.Fatal("compile returned neither a template nor problems, or both")
			}
			if c == nil {
				continue
			}
			got, problems := c.Render(values())
			if len(problems) == 0 && (strings.ContainsAny(got.Subject, "\r\n") ||
				strings.Contains(got.HTML, "<script") || strings.Contains(got.Text, "<no value>") &&
				!strings.Contains(s, "no value")) {
				t.Fatalf("%q", got)
			}
		}
	})
}
