// Package standard speaks a small JSON protocol, by which any service can be attached as a payment gateway. Requests
// and callbacks are signed as by Standard Webhooks. docs/gateways.md specifies the protocol.
package standard

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/httpsend"
)

// Dialect is the kind standard.
var Dialect = gateway.Dialect{PayTypes: payTypes, Check: check, New: build}

var payTypes = []gateway.PayType{{Name: "redirect"}}

// options are the settings of the kind.
type options struct {
	// Secrets are whsec_ and base64. Any verifies callbacks, the first signs requests.
	Secrets []string `json:"secrets"`
	// Merchant is our name at the gateway; empty: it is neither sent nor checked.
	Merchant string `json:"merchant"`
}

type account struct {
	*gateway.Account
	secrets  [][]byte
	merchant string
}

// Limits of secrets by the specification, in bytes.
const (
	minSecret = 24
	maxSecret = 64
)

func build(a *gateway.Account) (gateway.Gateway, error) {
	var o options
	if err := a.Options.Decode(&o); err != nil {
		return nil, err
	}
	g := &account{Account: a, merchant: o.Merchant}
	for i, text := range o.Secrets {
		s, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(text, "whsec_"))
		if err != nil || len(s) < minSecret || len(s) > maxSecret {
			return nil, fmt.Errorf("secrets[%d]: must be whsec_ and the base64 of %d to %d bytes",
				i, minSecret, maxSecret)
		}
		g.secrets = append(g.secrets, s)
	}
	switch {
	case len(g.secrets) == 0:
		return nil, errors.New("secrets: is missing")
	case a.URL == "":
		return nil, errors.New("url: is missing")
	}
	return g, nil
}

func check(p *gateway.Payment) error {
	if _, err := gateway.CheckPayType(p.PayType, payTypes); err != nil {
		return err
	}
	if err := gateway.CheckNumber("out_trade_no", p.OutTradeNo, "_-", 64); err != nil {
		return err
	}
	if p.Amount.Coef.Sign() <= 0 {
		return errors.New("amount: must be positive")
	}
	if p.Currency == "" {
		return errors.New("currency: is missing")
	}
	return gateway.CheckText("description", p.Description, 256)
}

// window is the greatest allowed difference between the time of a signature and our clock.
const window = 5 * time.Minute

func (g *account) sign(secret []byte, id, stamp string, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(id + "." + stamp + "."))
	mac.Write(body)
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

func (g *account) verify(h http.Header, body []byte, now time.Time) error {
	id, stamp := h.Get("Webhook-Id"), h.Get("Webhook-Timestamp")
	if err := gateway.CheckWindow(stamp, now, window); err != nil {
		return err
	}
	if id == "" {
		return fmt.Errorf("%w: it has no webhook-id", gateway.ErrForged)
	}
	for _, s := range g.secrets {
		want := []byte("v1," + g.sign(s, id, stamp, body))
		for one := range strings.SplitSeq(h.Get("Webhook-Signature"), " ") {
			if hmac.Equal([]byte(one), want) {
				return nil
			}
		}
	}
	return fmt.Errorf("%w: no signature is valid", gateway.ErrForged)
}

// message is a callback, or an answer.
type message struct {
	Type string    `json:"type"`
	Time time.Time `json:"timestamp"`
	Data struct {
		OutTradeNo    string `json:"out_trade_no"`
		TransactionID string `json:"transaction_id"`
		RefundNo      string `json:"refund_no"`
		RefundID      string `json:"refund_id"`
		Amount        string `json:"amount"`
		Currency      string `json:"currency"`
		Merchant      string `json:"merchant"`
		Code          string `json:"code"`
		Text          string `json:"text"`
	} `json:"data"`
	Credential gateway.Credential `json:"credential"`
	Error      struct {
		Code string `json:"code"`
		Text string `json:"text"`
	} `json:"error"`
}

var kinds = map[string]gateway.Kind{"payment.paid": gateway.Paid, "payment.pending": gateway.Pending,
	"payment.declined": gateway.Declined, "payment.closed": gateway.Closed, "refund.succeeded": gateway.Refunded,
	"refund.pending": gateway.RefundPending, "refund.failed": gateway.RefundFailed,
	"refund.abnormal": gateway.RefundAbnormal}

// Notice reads a callback.
func (g *account) Notice(h http.Header, body []byte, now time.Time) (gateway.Notice, error) {
	if err := g.verify(h, body, now); err != nil {
		return gateway.Notice{}, err
	}
	var m message
	if err := json.Unmarshal(body, &m); err != nil {
		return gateway.Notice{}, fmt.Errorf("%w: it is not the JSON of a callback", gateway.ErrFormat)
	}
	n, err := g.read(&m)
	n.ID = h.Get("Webhook-Id")
	return n, err
}

func (g *account) read(m *message) (gateway.Notice, error) {
	kind, ok := kinds[m.Type]
	if !ok {
		return gateway.Notice{Kind: gateway.Other}, nil
	}
	d := &m.Data
	n := gateway.Notice{Kind: kind, OutTradeNo: d.OutTradeNo, TransactionID: d.TransactionID, Currency: d.Currency,
		At: m.Time}
	if kind.Refund() {
		n.RefundNo, n.GatewayRefundID = d.RefundNo, d.RefundID
	}
	if d.Amount != "" {
		var err error
		if n.Amount, err = amount.ParseDecimal(d.Amount); err != nil {
			return n, fmt.Errorf("%w: data.amount is not a decimal", gateway.ErrFormat)
		}
		if d.Currency == "" {
			return n, fmt.Errorf("%w: data.currency is missing", gateway.ErrFormat)
		}
	}
	if g.merchant != "" && d.Merchant != g.merchant {
		n.Foreign = "merchant " + d.Merchant
	}
	n.Code, n.Text = gateway.Reason(d.Code, d.Text)
	return n, nil
}

// Acknowledge answers by the status alone.
func (g *account) Acknowledge(ok bool) gateway.Ack {
	if ok {
		return gateway.Ack{Status: http.StatusNoContent}
	}
	return gateway.Ack{Status: http.StatusServiceUnavailable}
}

// request is the body of all calls.
type request struct {
	Merchant      string `json:"merchant,omitempty"`
	OutTradeNo    string `json:"out_trade_no"`
	TransactionID string `json:"transaction_id,omitempty"`
	RefundNo      string `json:"refund_no,omitempty"`
	RefundID      string `json:"refund_id,omitempty"`
	Amount        string `json:"amount"`
	Paid          string `json:"paid,omitempty"`
	Currency      string `json:"currency"`
	PayType       string `json:"pay_type,omitempty"`
	Description   string `json:"description,omitempty"`
	Payer         string `json:"payer,omitempty"`
	PayerIP       string `json:"payer_ip,omitempty"`
	Reason        string `json:"reason,omitempty"`
	ReturnURL     string `json:"return_url,omitempty"`
	NotifyURL     string `json:"notify_url,omitempty"`
	ExpireTime    string `json:"expire_time,omitempty"`
}

// Create starts a payment.
func (g *account) Create(ctx context.Context, p *gateway.Payment) (gateway.Credential, gateway.Notice, error) {
	if err := check(p); err != nil {
		return nil, gateway.Notice{}, gateway.Invalid(err)
	}
	q := g.payment(p)
	q.PayType, q.Description, q.Payer, q.PayerIP = "redirect", p.Description, p.Payer, p.PayerIP
	q.ReturnURL, q.NotifyURL = p.ReturnURL, g.NotifyURL
	if !p.ExpiresAt.IsZero() {
		q.ExpireTime = p.ExpiresAt.UTC().Format(time.RFC3339)
	}
	m, n, err := g.call(ctx, "create", q)
	if err != nil {
		return nil, gateway.Notice{}, err
	}
	return m.Credential, n, nil
}

func (g *account) payment(p *gateway.Payment) *request {
	return &request{Merchant: g.merchant, OutTradeNo: p.OutTradeNo, TransactionID: p.TransactionID,
		Amount: p.Amount.String(), Currency: p.Currency}
}

// Query returns the state of a payment.
func (g *account) Query(ctx context.Context, p *gateway.Payment) (gateway.Notice, error) {
	_, n, err := g.call(ctx, "query", g.payment(p))
	return n, err
}

// Close closes a payment that is not paid.
func (g *account) Close(ctx context.Context, p *gateway.Payment) (gateway.Notice, error) {
	_, n, err := g.call(ctx, "close", g.payment(p))
	return n, err
}

func (g *account) refund(r *gateway.Refund) *request {
	return &request{Merchant: g.merchant, OutTradeNo: r.OutTradeNo, TransactionID: r.TransactionID,
		RefundNo: r.RefundNo, RefundID: r.GatewayRefundID, Amount: r.Amount.String(), Paid: r.Paid.String(),
		Currency: r.Currency, Reason: r.Reason}
}

// Refund requests a refund.
func (g *account) Refund(ctx context.Context, r *gateway.Refund) (gateway.Notice, error) {
	if err := gateway.CheckNumber("refund_no", r.RefundNo, "_-", 64); err != nil {
		return gateway.Notice{}, gateway.Invalid(err)
	}
	if r.Amount.Coef.Sign() <= 0 {
		return gateway.Notice{}, gateway.Invalid(errors.New("amount: must be positive"))
	}
	_, n, err := g.call(ctx, "refund", g.refund(r))
	return n, err
}

// QueryRefund returns the state of a refund.
func (g *account) QueryRefund(ctx context.Context, r *gateway.Refund) (gateway.Notice, error) {
	_, n, err := g.call(ctx, "query_refund", g.refund(r))
	return n, err
}

func (g *account) call(ctx context.Context, name string, q *request) (*message, gateway.Notice, error) {
	body, err := json.Marshal(q)
	if err != nil {
		return nil, gateway.Notice{}, gateway.Invalid(err)
	}
	id := name + "_" + q.OutTradeNo
	if q.RefundNo != "" {
		id = name + "_" + q.RefundNo
	}
	stamp := strconv.FormatInt(time.Now().Unix(), 10)
	a, err := g.Ask(ctx, &httpsend.Request{URL: g.URL + "/" + name, Body: body, Header: http.Header{
		"Content-Type": {"application/json"}, "Webhook-Id": {id}, "Webhook-Timestamp": {stamp},
		"Webhook-Signature": {"v1," + g.sign(g.secrets[0], id, stamp, body)}}})
	if err != nil {
		return nil, gateway.Notice{}, err
	}
	var m message
	readable := json.Unmarshal(a.Body, &m) == nil
	switch {
	case a.Status == http.StatusOK && readable:
	case a.Status == http.StatusNotFound && m.Error.Code == "no_trade":
		return nil, gateway.Notice{}, gateway.ErrNoTrade
	case a.Status == http.StatusOK:
		return nil, gateway.Notice{}, gateway.BadAnswer("standard", "the answer is not the JSON of a notice")
	default:
		code := m.Error.Code
		if code == "" {
			code = "http_" + strconv.Itoa(a.Status)
		}
		return nil, gateway.Notice{}, gateway.Failed(gateway.ByStatus(a.Status, m.Error.Code != ""), "standard", code,
			m.Error.Text, a)
	}
	n, err := g.read(&m)
	if err != nil {
		return nil, n, err
	}
	n.ID = gateway.AnswerID(name, n.Kind, n.OutTradeNo, n.RefundNo, n.TransactionID, n.Code)
	return &m, n, nil
}
