// Package standard simulates a gateway with ledgerd's generic protocol (docs/gateways.md): JSON, signed by Standard
// Webhooks in both directions.
package standard

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/examples/gateway/book"
)

const (
	name   = "standard"
	window = 5 * time.Minute
)

// Keys of the account.
type Keys struct {
	Merchant string   `json:"merchant"`
	Secrets  []string `json:"secrets"` // whsec_ and base64; any of them verifies, all of them sign
}

// NewKeys generates keys.
func NewKeys() Keys {
	return Keys{Merchant: "shop-1", Secrets: []string{newSecret()}}
}

func newSecret() string { return "whsec_" + base64.StdEncoding.EncodeToString([]byte(book.Alnum(32))) }

// Gateway is the simulated vendor.
type Gateway struct {
	Keys Keys
	Book *book.Book
	URL  string // of the simulator
}

var _ book.Dialect = (*Gateway)(nil)

func (*Gateway) Name() string { return name }

func (*Gateway) TransactionID(*book.Payment) string { return "tx_" + book.Alnum(20) }

type message struct {
	Type       string            `json:"type"`
	Time       time.Time         `json:"timestamp"`
	Data       data              `json:"data"`
	Credential map[string]string `json:"credential,omitempty"`
}

type data struct {
	OutTradeNo    string `json:"out_trade_no"`
	TransactionID string `json:"transaction_id,omitempty"`
	RefundNo      string `json:"refund_no,omitempty"`
	RefundID      string `json:"refund_id,omitempty"`
	Amount        string `json:"amount"`
	Currency      string `json:"currency"`
	Merchant      string `json:"merchant"`
	Code          string `json:"code,omitempty"`
	Text          string `json:"text,omitempty"`
}

// Compose writes one notice for every event, except EventFinished.
func (g *Gateway) Compose(e *book.Event) []book.Content {
	if e.Kind == book.EventFinished {
		return nil
	}
	m := g.payment(e.Payment, e.Transaction)
	if e.Refund != nil {
		m = g.refundMessage(e.Payment, e.Refund)
	}
	m.Time = e.At
	return []book.Content{{ID: "msg_" + book.Alnum(27), Type: m.Type, URL: e.Payment.NotifyURL, Body: m}}
}

func (g *Gateway) merchant(t *book.Transaction) string {
	if t != nil && t.Foreign() {
		return "another-shop"
	}
	return g.Keys.Merchant
}

// payment returns the message with the state of a payment; t is the transaction in it.
func (g *Gateway) payment(p *book.Payment, t *book.Transaction) *message {
	m := &message{Type: "payment.pending", Time: p.CreatedAt, Data: data{OutTradeNo: p.Number,
		Amount: book.Format(p.Amount, p.Scale), Currency: p.Currency, Merchant: g.merchant(t)}}
	switch p.Status {
	case book.Paid:
		m.Type, m.Time, m.Data.TransactionID = "payment.paid", t.At, t.ID
		m.Data.Amount, m.Data.Currency = book.Format(t.Amount, t.Scale), t.Currency
	case book.Declined:
		m.Type, m.Data.Code, m.Data.Text = "payment.declined", p.Failure, "The payer's bank declined."
	case book.Closed:
		m.Type, m.Time = "payment.closed", p.ClosedAt
	case book.Unopened, book.Payable, book.Processing:
	}
	return m
}

func (g *Gateway) refundMessage(p *book.Payment, r *book.Refund) *message {
	types := map[book.RefundStatus]string{book.RefundSucceeded: "refund.succeeded", book.RefundFailed: "refund.failed",
		book.RefundProcessing: "refund.pending", book.RefundAbnormal: "refund.abnormal"}
	m := &message{Type: types[r.Status], Time: r.CreatedAt, Data: data{OutTradeNo: p.Number,
		TransactionID: r.Transaction, RefundNo: r.Number, RefundID: r.ID, Amount: book.Format(r.Amount, r.Scale),
		Currency: r.Currency, Merchant: g.merchant(p.Transaction(r.Transaction)), Code: r.Code}}
	if !r.EndedAt.IsZero() {
		m.Time = r.EndedAt
	}
	return m
}

// Request signs a notice with the present time.
func (g *Gateway) Request(n *book.Notice, url string, now time.Time, f book.Forgery) *http.Request {
	body := string(n.Content)
	secrets := g.Keys.Secrets
	switch f {
	case book.Old:
		now = now.Add(-10 * time.Minute)
	case book.Future:
		now = now.Add(10 * time.Minute)
	case book.Key, book.Probe, book.Serial:
		secrets = []string{newSecret()}
	}
	stamp := strconv.FormatInt(now.Unix(), 10)
	var signatures []string
	for _, s := range secrets {
		signatures = append(signatures, sign(s, n.ID, stamp, body))
	}
	if f == book.Tampered {
		body = strings.Replace(body, `"amount":"`, `"amount":"1`, 1)
	}
	r, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return nil
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Webhook-Id", n.ID)
	r.Header.Set("Webhook-Timestamp", stamp)
	if f != book.None {
		r.Header.Set("Webhook-Signature", strings.Join(signatures, " "))
	}
	return r
}

func sign(secret, id, stamp, body string) string {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		panic(err) // the keys were checked when they were read
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + stamp + "." + body))
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// Acknowledged reports whether the status is 2xx.
func (*Gateway) Acknowledged(status int, _ []byte) bool { return status >= 200 && status < 300 }

// Schedule has the waits that Standard Webhooks suggests.
func (*Gateway) Schedule() []time.Duration {
	const m, h = time.Minute, time.Hour
	return []time.Duration{5 * time.Second, 5 * m, 30 * m, 2 * h, 5 * h, 10 * h, 14 * h, 20 * h, 24 * h}
}

func (*Gateway) Patience() time.Duration { return 15 * time.Second }

// Routes adds the API.
func (g *Gateway) Routes(mux *http.ServeMux) {
	for operation, f := range map[string]func(*http.Request, *request) book.Answer{"create": g.create, "query": g.query,
		"close": g.close, "refund": g.refund, "query_refund": g.queryRefund} {
		mux.HandleFunc("POST /standard/"+operation, g.handle(operation, f))
	}
}

// request has the fields of all calls.
type request struct {
	Merchant      string    `json:"merchant"`
	OutTradeNo    string    `json:"out_trade_no"`
	TransactionID string    `json:"transaction_id"`
	RefundNo      string    `json:"refund_no"`
	Amount        string    `json:"amount"`
	Currency      string    `json:"currency"`
	PayType       string    `json:"pay_type"`
	Description   string    `json:"description"`
	Payer         string    `json:"payer"`
	Reason        string    `json:"reason"`
	ReturnURL     string    `json:"return_url"`
	NotifyURL     string    `json:"notify_url"`
	ExpireTime    time.Time `json:"expire_time"`
}

func answer(status int, v any) book.Answer {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return book.Answer{Status: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}
}

func fail(status int, code, text string) book.Answer {
	return answer(status, map[string]any{"error": map[string]string{"code": code, "text": text}})
}

func overloaded(status int) book.Answer { return fail(status, "unavailable", "try again") }

func (g *Gateway) handle(operation string, f func(*http.Request, *request) book.Answer) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q := &request{}
		b := book.Call{Gateway: name, Operation: operation, Fail: overloaded,
			Effect: func() book.Answer { return f(r, q) }}
		refused := func(a book.Answer) { b.Effect = func() book.Answer { return a } }
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		switch {
		case err != nil:
			refused(fail(http.StatusRequestEntityTooLarge, "too_large", "more than 1 MiB"))
		case !g.signed(r.Header, string(body)):
			refused(fail(http.StatusUnauthorized, "signature",
				"no signature is valid, or its time is more than 5 minutes off"))
		case json.Unmarshal(body, q) != nil:
			refused(fail(http.StatusBadRequest, "format", "the body is not valid JSON of a request"))
		case q.Merchant != "" && q.Merchant != g.Keys.Merchant:
			refused(fail(http.StatusForbidden, "merchant", "another merchant's"))
		case q.OutTradeNo == "" || len(q.OutTradeNo) > 64:
			refused(fail(http.StatusBadRequest, "out_trade_no", "1 to 64 bytes"))
		default:
			b.Number = q.OutTradeNo
		}
		g.Book.Serve(w, r, b)
	}
}

func (g *Gateway) signed(h http.Header, body string) bool {
	id, stamp := h.Get("Webhook-Id"), h.Get("Webhook-Timestamp")
	at, err := strconv.ParseInt(stamp, 10, 64)
	if age := time.Since(time.Unix(at, 0)); id == "" || err != nil || age > window || age < -window {
		return false
	}
	return slices.ContainsFunc(g.Keys.Secrets, func(secret string) bool {
		return slices.ContainsFunc(strings.Fields(h.Get("Webhook-Signature")), func(one string) bool {
			return hmac.Equal([]byte(one), []byte(sign(secret, id, stamp, body)))
		})
	})
}

var noTrade = fail(http.StatusNotFound, "no_trade", "unknown")

// find returns the payment and the transaction that the request names.
func (g *Gateway) find(q *request) (*book.Payment, *book.Transaction) {
	p, err := g.Book.Payment(name, q.OutTradeNo)
	if err != nil {
		return nil, nil
	}
	if t := p.Transaction(q.TransactionID); t != nil {
		return p, t
	}
	return p, p.First()
}

func (g *Gateway) create(r *http.Request, q *request) book.Answer {
	scale := book.Decimals(q.Currency)
	whole, fraction, _ := strings.Cut(q.Amount, ".") // trailing zeros do not change an amount
	if fraction = strings.TrimRight(fraction, "0"); fraction != "" {
		whole += "." + fraction
	}
	amount, err := book.Parse(whole, scale)
	switch {
	case err != nil:
		return fail(http.StatusBadRequest, "amount", err.Error())
	case len(q.Currency) != 3:
		return fail(http.StatusBadRequest, "currency", "currency is not an ISO 4217 code")
	}
	p, _, err := g.Book.Create(book.Payment{Gateway: name, Key: q.OutTradeNo, Number: q.OutTradeNo, PayType: q.PayType,
		Amount: amount, Scale: scale, Currency: q.Currency, ExpiresAt: q.ExpireTime, Description: q.Description,
		Payer: q.Payer, Secret: book.Alnum(32), NotifyURL: q.NotifyURL, ReturnURL: q.ReturnURL}, "")
	if err != nil {
		return fail(http.StatusConflict, "different", "the number has another amount or currency")
	}
	m := g.payment(p, p.First())
	m.Credential = map[string]string{"redirect_url": g.URL + "/pay/standard?id=" + p.Secret}
	g.Book.Play(r.Context(), p)
	return answer(http.StatusOK, m)
}

func (g *Gateway) query(_ *http.Request, q *request) book.Answer {
	p, t := g.find(q)
	if p == nil {
		return noTrade
	}
	return answer(http.StatusOK, g.payment(p, t))
}

// close closes the payment if possible, and answers with its state.
func (g *Gateway) close(_ *http.Request, q *request) book.Answer {
	p, t := g.find(q)
	if p == nil {
		return noTrade
	}
	if after, err := g.Book.Act(name, p.Key, book.Act{Do: "close"}); err == nil {
		p = after
	}
	return answer(http.StatusOK, g.payment(p, t))
}

func (g *Gateway) refund(r *http.Request, q *request) book.Answer {
	p, t := g.find(q)
	if p == nil || t == nil {
		return noTrade
	}
	amount, err := book.Parse(q.Amount, t.Scale)
	if err != nil || q.RefundNo == "" {
		return fail(http.StatusBadRequest, "amount", "amount or refund_no is wrong")
	}
	made, _, err := g.Book.Refund(book.Refund{Gateway: name, Key: q.RefundNo, Number: q.RefundNo,
		ID: "rf_" + book.Alnum(20), Payment: p.Key, Transaction: t.ID, Amount: amount, Reason: q.Reason}, "", true)
	var state *book.StateError
	switch {
	case errors.Is(err, book.ErrDifferent):
		return fail(http.StatusConflict, "different", "the number has another amount or transaction")
	case errors.Is(err, book.ErrTooMuch), errors.Is(err, book.ErrRefused), errors.As(err, &state):
		return fail(http.StatusUnprocessableEntity, "refused", err.Error())
	case err != nil:
		return noTrade
	}
	m := g.refundMessage(p, made)
	g.Book.PlayRefund(r.Context(), made)
	return answer(http.StatusOK, m)
}

func (g *Gateway) queryRefund(_ *http.Request, q *request) book.Answer {
	r, err := g.Book.FindRefund(name, q.RefundNo)
	p, _ := g.find(q)
	if err != nil || p == nil {
		return noTrade
	}
	return answer(http.StatusOK, g.refundMessage(p, r))
}
