package sms

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/ledgerd/ledgerd/internal/httpsend"
	"github.com/ledgerd/ledgerd/internal/notify/report"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// HTTPSettings describe a provider that accepts a message in one HTTP request. Values of Query, Form, JSON and Header
// may contain placeholders: {recipient} is the number in E.164, {number} the same without the plus, {template} the
// message's template for this provider; and {text}, {key} and {param:NAME}. They are replaced after the JSON is parsed
// and before the form is encoded, so values cannot inject anything.
type HTTPSettings struct {
	Name   string            `json:"-"`
	Method string            `json:"method"` // POST (empty), PUT or GET
	URL    string            `json:"url"`
	Clear  bool              `json:"allow_http"`
	Header map[string]string `json:"headers"`
	Query  map[string]string `json:"query"`
	// At most one of Form and JSON may be set.
	Form map[string]string `json:"form"`
	JSON json.RawMessage   `json:"json"`
	// User and Password are for Basic authentication.
	User     string `json:"user"`
	Password string `json:"password"`
	// KeyHeader is the header by which the provider deduplicates, such as Idempotency-Key; empty: none.
	KeyHeader string `json:"key_header"`

	// Statuses that mean success; empty: 200 to 299.
	Statuses []int `json:"statuses"`
	// CodeAt is a JSON pointer to the code in a JSON response, such as /result/0/status. Empty: only the status counts.
	CodeAt string `json:"code_at"`
	// Codes that mean success. Requires CodeAt.
	Codes []string `json:"codes"`
	// IDAt and TextAt are JSON pointers to the provider's message id and error text.
	IDAt   string `json:"id_at"`
	TextAt string `json:"text_at"`
	// Outcomes by code, or by "http_" and status: temporary, refused, permanent or unknown.
	Outcomes map[string]string `json:"outcomes"`
	// ReportSecret is the last part of the path for delivery reports; empty: reports are refused.
	ReportSecret string      `json:"report_secret"`
	Reports      report.JSON `json:"reports"`
	TLS          *tls.Config `json:"-"`
}

// HTTP sends through a provider described by HTTPSettings.
type HTTP struct {
	s        HTTPSettings
	url      *url.URL
	json     any
	verdicts verdicts
	client   *httpsend.Client
}

var outcomes = map[string]verdict{"temporary": later(0), "refused": refused, "permanent": permanent, "unknown": unknown}

// NewHTTP validates the settings and returns a sender.
func NewHTTP(s HTTPSettings) (*HTTP, error) {
	u, err := base(s.URL, s.Clear)
	if err != nil {
		return nil, err
	}
	p := &HTTP{s: s, url: u, verdicts: verdicts{}, client: client(s.TLS)}
	if p.s.Method == "" {
		p.s.Method = http.MethodPost
	}
	switch {
	case !slices.Contains([]string{"POST", "PUT", "GET"}, p.s.Method):
		return nil, fmt.Errorf("method must be POST, PUT or GET, not %q", s.Method)
	case len(s.Form) > 0 && len(s.JSON) > 0, p.s.Method == "GET" && len(s.Form)+len(s.JSON) > 0:
		return nil, fmt.Errorf("set only one of form and json, and neither for GET")
	case (s.CodeAt == "") != (len(s.Codes) == 0):
		return nil, fmt.Errorf("set both code_at and codes, or neither")
	}
	for name, at := range map[string]string{"code_at": s.CodeAt, "id_at": s.IDAt, "text_at": s.TextAt} {
		if at != "" && at[0] != '/' {
			return nil, fmt.Errorf("%s must be a JSON pointer, which begins with /, not %q", name, at)
		}
	}
	for code, name := range s.Outcomes {
		v, known := outcomes[name]
		if !known {
			return nil, fmt.Errorf("outcomes: %q must be temporary, refused, permanent or unknown, not %q", code, name)
		}
		p.verdicts[code] = v
	}
	if len(s.JSON) > 0 {
		d := json.NewDecoder(bytes.NewReader(s.JSON))
		d.UseNumber()
		if err := d.Decode(&p.json); err != nil {
			return nil, fmt.Errorf("json: %w", err)
		}
	}
	return p, p.checkPlaceholders()
}

// checkPlaceholders fills the request for a sample message, to find misspelt placeholders at startup.
func (p *HTTP) checkPlaceholders() error {
	f := filler{m: &send.Message{Recipient: "+10000000000", Key: "k"}, lax: true}
	p.request(&f)
	if len(f.bad) > 0 {
		return fmt.Errorf("unknown placeholders: %s", strings.Join(f.bad, ", "))
	}
	return nil
}

// Send makes one request.
func (p *HTTP) Send(ctx context.Context, m *send.Message) (send.Receipt, error) {
	f := filler{m: m, name: p.s.Name}
	r := p.request(&f)
	if len(f.bad) > 0 {
		return send.Receipt{}, failure(send.Refused, "no_value",
			"the message has no value for "+strings.Join(f.bad, ", "))
	}
	a, failed := ask(ctx, p.client, r)
	if failed != nil {
		return send.Receipt{}, failed
	}
	return p.receipt(m, a)
}

func (p *HTTP) receipt(m *send.Message, a *httpsend.Answer) (send.Receipt, error) {
	taken := a.Status >= 200 && a.Status < 300
	if len(p.s.Statuses) > 0 {
		taken = slices.Contains(p.s.Statuses, a.Status)
	}
	status := "http_" + strconv.Itoa(a.Status)
	said, _ := report.Parse(a.Body) // nil: not JSON
	code, found := report.At(said, p.s.CodeAt)
	switch {
	case taken && p.s.CodeAt == "", taken && found && slices.Contains(p.s.Codes, code):
		id, _ := report.At(said, p.s.IDAt)
		return send.Receipt{ProviderMessageID: httpsend.Cut(id, 256)}, nil
	case !found:
		code = status
	}
	v, known := p.verdicts[code]
	if !known {
		v, known = p.verdicts[status]
	}
	if !known {
		v = byStatus(a.Status)
	}
	text, _ := report.At(said, p.s.TextAt)
	return send.Receipt{}, v.failed(m, a, "sms", code, text)
}

func (p *HTTP) request(f *filler) *httpsend.Request {
	u := *p.url
	if len(p.s.Query) > 0 {
		q := u.Query()
		for name, value := range p.s.Query {
			q.Set(name, f.fill(value))
		}
		u.RawQuery = q.Encode()
	}
	r := &httpsend.Request{Method: p.s.Method, URL: u.String(), Header: http.Header{"Accept": {"application/json"}}}
	switch {
	case p.json != nil:
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		_ = e.Encode(f.tree(p.json)) // parsed JSON can always be encoded
		r.Body = b.Bytes()
		r.Header.Set("Content-Type", "application/json; charset=utf-8")
	case len(p.s.Form) > 0:
		form := url.Values{}
		for name, value := range p.s.Form {
			form.Set(name, f.fill(value))
		}
		r.Body = []byte(form.Encode())
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for name, value := range p.s.Header {
		r.Header.Set(name, strings.NewReplacer("\r", " ", "\n", " ").Replace(f.fill(value)))
	}
	if p.s.User != "" {
		r.Header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(p.s.User+":"+p.s.Password)))
	}
	if p.s.KeyHeader != "" {
		r.Header.Set(p.s.KeyHeader, f.m.Key)
	}
	return r
}

// filler replaces placeholders with values of a message.
type filler struct {
	m    *send.Message
	name string
	lax  bool // sample message: only unknown placeholders are errors
	bad  []string
}

func (f *filler) fill(text string) string {
	var b strings.Builder
	for {
		before, rest, open := strings.Cut(text, "{")
		b.WriteString(before)
		if !open {
			return b.String()
		}
		name, after, closed := strings.Cut(rest, "}")
		if !closed {
			b.WriteString("{" + rest)
			return b.String()
		}
		b.WriteString(f.value(name))
		text = after
	}
}

func (f *filler) value(name string) string {
	var v string
	c := &f.m.Content
	param, isParam := strings.CutPrefix(name, "param:")
	switch {
	case isParam:
		params := c.ParamsFor(f.name)
		if i := slices.IndexFunc(params, func(p send.Param) bool { return p.Name == param }); i >= 0 {
			return params[i].Value // may be empty
		}
	case name == "recipient":
		v = f.m.Recipient
	case name == "number":
		v = strings.TrimPrefix(f.m.Recipient, "+")
	case name == "text":
		v = c.Text
	case name == "key":
		v = f.m.Key
	case name == "template":
		v = c.Template[f.name]
	default:
		f.bad = append(f.bad, "{"+name+"}")
		return ""
	}
	if v == "" && !f.lax {
		f.bad = append(f.bad, "{"+name+"}")
	}
	return v
}

// tree returns a copy of a JSON value with placeholders replaced in all strings.
func (f *filler) tree(v any) any {
	switch v := v.(type) {
	case string:
		return f.fill(v)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = f.tree(v[i])
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for name := range v {
			out[name] = f.tree(v[name])
		}
		return out
	}
	return v
}
