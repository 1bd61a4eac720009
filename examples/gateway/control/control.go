// Package control is the API by which a test or a person acts as the payer and injects faults: JSON over HTTP, and a
// page.
//
// It has no authentication: by default, the simulator listens on a loopback address. Changing requests must be JSON, so
// that web pages of other origins cannot send them.
package control

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/examples/gateway/book"
)

// Control is the API of tests and people.
type Control struct {
	Book *book.Book
	// Verify verifies the credential with which an app starts a payment, by gateway.
	Verify map[string]func(credential map[string]string) error
}

//go:embed *.html
var texts embed.FS

var pages = template.Must(template.New("").Funcs(template.FuncMap{"amount": book.Format}).ParseFS(texts, "*.html"))

// Routes adds the API and the pages.
func (c *Control) Routes(mux *http.ServeMux) {
	for pattern, f := range map[string]func(*http.Request) (any, error){
		"GET /control/payments":                     c.payments,
		"POST /control/payments/{gateway}/{number}": c.act,
		"GET /control/refunds/{gateway}/{number}":   c.refunds,
		"POST /control/refunds/{gateway}/{refund}":  c.settle,
		"POST /control/forge/{gateway}/{number}":    c.forge,
		"POST /control/open/{gateway}":              c.open,
		"GET /control/plans":                        func(*http.Request) (any, error) { return c.Book.Plans(), nil },
		"PUT /control/plans":                        c.setPlans,
		"PUT /control/plans/{number}":               c.setPlan,
		"GET /control/notices":                      c.notices,
		"POST /control/release":                     c.release,
		"GET /control/quiet":                        c.quiet,
		"GET /control/totals":                       func(*http.Request) (any, error) { return c.Book.Totals(), nil },
		"GET /control/calls":                        func(*http.Request) (any, error) { return c.Book.Calls(), nil },
		"PUT /control/callbacks":                    c.setCallbacks,
	} {
		mux.HandleFunc(pattern, serve(f))
	}
	mux.HandleFunc("GET /{$}", c.page)
	mux.HandleFunc("GET /pay/{gateway}", c.cashier)
}

var errRequest = errors.New("bad request")

func serve(f func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		status, v := http.StatusOK, any(nil)
		kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
		err := error(nil)
		if r.Method != http.MethodGet && kind != "application/json" {
			err = fmt.Errorf("%w: Content-Type must be application/json", errRequest)
		} else {
			v, err = f(r)
		}
		var state *book.StateError
		switch {
		case err == nil:
		case errors.As(err, &state), errors.Is(err, book.ErrTooMuch):
			status = http.StatusConflict
		case errors.Is(err, book.ErrNotFound):
			status = http.StatusNotFound
		case errors.Is(err, context.DeadlineExceeded):
			status = http.StatusGatewayTimeout
		default:
			status = http.StatusBadRequest
		}
		if err != nil {
			v = map[string]string{"error": err.Error()}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		_ = e.Encode(v)
	}
}

// read decodes a body. An empty body leaves the value unchanged.
func read(r *http.Request, into any) error {
	d := json.NewDecoder(io.LimitReader(r.Body, 1<<20))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: %w", errRequest, err)
	}
	return nil
}

func (c *Control) payments(r *http.Request) (any, error) {
	found := c.Book.Search(r.FormValue("gateway"), r.FormValue("number"))
	if found == nil {
		found = []*book.Payment{}
	}
	return found, nil
}

func (c *Control) resolve(r *http.Request) (*book.Payment, error) {
	return c.Book.Resolve(r.PathValue("gateway"), r.PathValue("number"))
}

func (c *Control) act(r *http.Request) (any, error) {
	var a book.Act
	if err := read(r, &a); err != nil {
		return nil, err
	}
	p, err := c.resolve(r)
	if err != nil {
		return nil, err
	}
	return c.Book.Act(p.Gateway, p.Key, a)
}

func (c *Control) refunds(r *http.Request) (any, error) {
	p, err := c.resolve(r)
	if err != nil {
		return nil, err
	}
	return c.Book.Refunds(p.Gateway, p.Key), nil
}

// settle sets the status of a refund, which is named by its key: at Alipay number/refund number, with the slash as %2F.
func (c *Control) settle(r *http.Request) (any, error) {
	var q struct {
		Do string `json:"do"`
	}
	if err := read(r, &q); err != nil {
		return nil, err
	}
	to, ok := map[string]book.RefundStatus{"succeed": book.RefundSucceeded, "fail": book.RefundFailed,
		"abnormal": book.RefundAbnormal, "pending": book.RefundProcessing}[q.Do]
	if !ok {
		return nil, fmt.Errorf("%w: do: %q is not one of succeed, fail, abnormal, pending", errRequest, q.Do)
	}
	return c.Book.SettleRefund(r.PathValue("gateway"), r.PathValue("refund"), to)
}

func (c *Control) forge(r *http.Request) (any, error) {
	var q struct {
		How book.Forgery `json:"how"`
	}
	if err := read(r, &q); err != nil {
		return nil, err
	}
	p, err := c.resolve(r)
	if err != nil {
		return nil, err
	}
	return c.Book.Forge(p.Gateway, p.Key, q.How)
}

// open acts as the payer's client, which opens the credential that the merchant gave it.
func (c *Control) open(r *http.Request) (any, error) {
	credential := map[string]string{}
	if err := read(r, &credential); err != nil {
		return nil, err
	}
	gateway := r.PathValue("gateway")
	if verify := c.Verify[gateway]; verify != nil {
		if err := verify(credential); err != nil {
			return nil, err
		}
	}
	for _, value := range credential {
		if p := c.bySecret(gateway, value); p != nil {
			if p.Status == book.Unopened {
				return c.Book.Act(p.Gateway, p.Key, book.Act{Do: "open"})
			}
			return p, nil
		}
	}
	return nil, fmt.Errorf("credential: %w", book.ErrNotFound)
}

func (c *Control) bySecret(gateway, text string) *book.Payment {
	for _, p := range c.Book.Search(gateway, "") {
		if p.Secret != "" && strings.Contains(text, p.Secret) {
			return p
		}
	}
	return nil
}

func (c *Control) setPlans(r *http.Request) (any, error) {
	var p book.Plans
	if err := read(r, &p); err != nil {
		return nil, err
	}
	all := []book.Plan{p.Default}
	for _, w := range p.Mix {
		all = append(all, w.Plan)
	}
	for _, one := range p.ByNumber {
		all = append(all, one)
	}
	for _, one := range all {
		if err := one.Check(); err != nil {
			return nil, err
		}
	}
	return p, c.Book.SetPlans(p)
}

func (c *Control) setPlan(r *http.Request) (any, error) {
	var p book.Plan
	if err := read(r, &p); err != nil {
		return nil, err
	}
	if err := p.Check(); err != nil {
		return nil, err
	}
	return p, c.Book.SetPlan(r.PathValue("number"), p)
}

func (c *Control) notices(r *http.Request) (any, error) {
	return c.Book.Notices(r.FormValue("number")), nil
}

func (c *Control) release(r *http.Request) (any, error) {
	var q struct {
		Number string `json:"number"`
		Order  string `json:"order"`
	}
	if err := read(r, &q); err != nil {
		return nil, err
	}
	n, err := c.Book.Release(q.Number, q.Order)
	return map[string]int{"released": n}, err
}

// quiet waits until all payers, refunds and notices are done.
func (c *Control) quiet(r *http.Request) (any, error) {
	wait := 10 * time.Second
	if text := r.FormValue("timeout"); text != "" {
		var err error
		if wait, err = time.ParseDuration(text); err != nil {
			return nil, fmt.Errorf("%w: %w", errRequest, err)
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	if !c.Book.Quiet(ctx) {
		return nil, fmt.Errorf("notices or payers are not done: %w", context.DeadlineExceeded)
	}
	return map[string]bool{"quiet": true}, nil
}

func (c *Control) setCallbacks(r *http.Request) (any, error) {
	var q struct {
		URL string `json:"url"`
	}
	if err := read(r, &q); err != nil {
		return nil, err
	}
	return q, c.Book.SetCallbacks(q.URL)
}

func (c *Control) page(w http.ResponseWriter, _ *http.Request) {
	c.show(w, "page.html", map[string]any{"Payments": c.Book.Search("", ""), "Totals": c.Book.Totals()})
}

// cashier is the page behind the payer's QR code or link.
func (c *Control) cashier(w http.ResponseWriter, r *http.Request) {
	p := c.bySecret(r.PathValue("gateway"), r.URL.RawQuery)
	if p == nil {
		http.NotFound(w, r)
		return
	}
	if p.Status == book.Unopened {
		if opened, err := c.Book.Act(p.Gateway, p.Key, book.Act{Do: "open"}); err == nil {
			p = opened
		}
	}
	c.show(w, "page.html", map[string]any{"Payments": []*book.Payment{p}})
}

func (c *Control) show(w http.ResponseWriter, name string, v any) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	_ = pages.ExecuteTemplate(w, name, v)
}
