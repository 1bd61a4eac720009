package stripe

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"

	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/httpsend"
)

// version is the API version whose fields this package reads: https://docs.stripe.com/api/versioning.
const version = "2025-03-31.basil"

// apiError is the error of an answer.
type apiError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// ask makes a request and decodes its answer. key is the idempotency key of a
// POST, or empty.
func (g *account) ask(ctx context.Context, method, path, key string, form url.Values, into any) (*apiError, error) {
	r := &httpsend.Request{Method: method, URL: g.URL + path, Header: http.Header{
		"Authorization": {"Bearer " + g.key}, "Stripe-Version": {version}}}
	if g.connected != "" {
		r.Header.Set("Stripe-Account", g.connected)
	}
	switch {
	case method == http.MethodPost:
		r.Body = []byte(form.Encode())
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
	case len(form) > 0:
		r.URL += "?" + form.Encode()
	}
	a, err := g.Ask(ctx, r)
	if err != nil {
		return nil, err
	}
	if a.Status == http.StatusOK {
		if err := json.Unmarshal(a.Body, into); err != nil {
			return nil, gateway.BadAnswer("stripe", "the answer is not the JSON of the object")
		}
		return nil, nil
	}
	var said struct {
		Error apiError `json:"error"`
	}
	_ = json.Unmarshal(a.Body, &said) // an error without a body has a status
	e := &said.Error
	code := e.Code
	if code == "" {
		code = "http_" + strconv.Itoa(a.Status)
	}
	outcome := gateway.ByStatus(a.Status, e.Code != "" || e.Message != "")
	switch {
	case e.Code == "resource_missing" && a.Status == http.StatusNotFound:
		return e, gateway.ErrNoTrade
	case a.Status == http.StatusConflict, e.Code == "lock_timeout":
		outcome = gateway.Unknown // another request with this key is running
	}
	return e, gateway.Failed(outcome, "stripe", code, e.Message, a)
}

// answer returns the notice of an answer.
func (g *account) answer(call string, p *intent) gateway.Notice {
	n := p.notice()
	// A second decline is another notice: it has another charge.
	n.ID = gateway.AnswerID(call, n.Kind, n.TransactionID, p.LatestCharge)
	if p.Livemode != g.live {
		n.Foreign = mode(p.Livemode)
	}
	return n
}

// Create makes a PaymentIntent. Stripe keeps idempotency keys for a day: repeat it later only after Query.
func (g *account) Create(ctx context.Context, p *gateway.Payment) (gateway.Credential, gateway.Notice, error) {
	if err := check(p); err != nil {
		return nil, gateway.Notice{}, gateway.Invalid(err)
	}
	var got intent
	var err error
	if p.TransactionID != "" {
		_, err = g.ask(ctx, http.MethodGet, "/v1/payment_intents/"+url.PathEscape(p.TransactionID), "", nil, &got)
	} else {
		amount, _ := minor(p.Amount, p.Currency) // checked
		form := url.Values{"amount": {amount}, "currency": {lower(p.Currency)},
			"automatic_payment_methods[enabled]": {"true"}, "metadata[out_trade_no]": {p.OutTradeNo}}
		if p.Description != "" {
			form.Set("description", p.Description)
		}
		_, err = g.ask(ctx, http.MethodPost, "/v1/payment_intents", "pay_"+p.OutTradeNo, form, &got)
	}
	if err != nil {
		return nil, gateway.Notice{}, err
	}
	c := gateway.Credential{"client_secret": got.ClientSecret, "payment_intent": got.ID}
	if g.publishable != "" {
		c["publishable_key"] = g.publishable
	}
	if g.connected != "" {
		c["account"] = g.connected
	}
	return c, g.answer("create", &got), nil
}

// Query reads the PaymentIntent, by its id or else by our number. The search by number lags by up to a minute, in
// outages an hour: ErrNoTrade is not final; Create with the same number is safe then.
func (g *account) Query(ctx context.Context, p *gateway.Payment) (gateway.Notice, error) {
	got, err := g.find(ctx, p)
	if err != nil {
		return gateway.Notice{}, err
	}
	return g.answer("query", got), nil
}

func (g *account) find(ctx context.Context, p *gateway.Payment) (*intent, error) {
	if p.TransactionID != "" {
		var got intent
		_, err := g.ask(ctx, http.MethodGet, "/v1/payment_intents/"+url.PathEscape(p.TransactionID), "", nil, &got)
		return &got, err
	}
	if err := gateway.CheckNumber("out_trade_no", p.OutTradeNo, "_-", 64); err != nil {
		return nil, gateway.Invalid(err) // it is quoted in the query
	}
	var found struct {
		Data []*intent `json:"data"`
	}
	_, err := g.ask(ctx, http.MethodGet, "/v1/payment_intents/search", "",
		url.Values{"query": {"metadata['out_trade_no']:'" + p.OutTradeNo + "'"}, "limit": {"100"}}, &found)
	if err != nil {
		return nil, err
	}
	var best *intent
	for _, one := range found.Data {
		// Exact: the search may normalise case. Several: one that is paid decides.
		if one != nil && one.Metadata.OutTradeNo == p.OutTradeNo && (best == nil || rank(one) > rank(best)) {
			best = one
		}
	}
	if best == nil {
		return nil, gateway.ErrNoTrade
	}
	return best, nil
}

func rank(p *intent) int {
	switch p.kind() {
	case gateway.Paid:
		return 2
	case gateway.Closed:
		return 0
	}
	return 1
}

// Close cancels the PaymentIntent.
func (g *account) Close(ctx context.Context, p *gateway.Payment) (gateway.Notice, error) {
	id := p.TransactionID
	if id == "" {
		found, err := g.find(ctx, p)
		if err != nil {
			return gateway.Notice{}, err
		}
		id = found.ID
	}
	var got intent
	// Without an idempotency key: cancelling twice is harmless, and a repeat must not get an old refusal.
	refused, err := g.ask(ctx, http.MethodPost, "/v1/payment_intents/"+url.PathEscape(id)+"/cancel", "",
		url.Values{"cancellation_reason": {"abandoned"}}, &got)
	if err != nil && refused != nil && refused.Code == "payment_intent_unexpected_state" {
		// It is paid, cancelled or processing.
		known := *p
		known.TransactionID = id
		now, err := g.find(ctx, &known)
		if err != nil {
			return gateway.Notice{}, err
		}
		return g.answer("close", now), nil
	}
	if err != nil {
		return gateway.Notice{}, err
	}
	return g.answer("close", &got), nil
}

// Refund requests a refund. It first looks for a refund with this number: a repeat after more than a day, when Stripe
// has forgotten the idempotency key, would otherwise refund twice.
func (g *account) Refund(ctx context.Context, r *gateway.Refund) (gateway.Notice, error) {
	if err := gateway.CheckNumber("refund_no", r.RefundNo, "_-", 64); err != nil {
		return gateway.Notice{}, gateway.Invalid(err)
	}
	amount, err := minor(r.Amount, r.Currency)
	if err != nil {
		return gateway.Notice{}, gateway.Invalid(err)
	}
	if r.TransactionID == "" {
		return gateway.Notice{}, gateway.Failed(gateway.Refused, "stripe", "no_transaction",
			"the payment has no transaction id, so it is not paid", nil)
	}
	if n, err := g.findRefund(ctx, "refund", r); !errors.Is(err, gateway.ErrNoTrade) {
		return n, err
	}
	var got refund
	_, err = g.ask(ctx, http.MethodPost, "/v1/refunds", "refund_"+r.RefundNo, url.Values{
		"payment_intent": {r.TransactionID}, "amount": {amount}, "metadata[refund_no]": {r.RefundNo},
		"metadata[out_trade_no]": {r.OutTradeNo}}, &got)
	if err != nil {
		return gateway.Notice{}, err
	}
	return refundAnswer("refund", &got), nil
}

func refundAnswer(call string, r *refund) gateway.Notice {
	n := r.notice()
	n.ID = gateway.AnswerID(call, n.Kind, r.ID)
	return n
}

// QueryRefund reads the refund, by its id, or among the refunds of the payment.
func (g *account) QueryRefund(ctx context.Context, r *gateway.Refund) (gateway.Notice, error) {
	return g.findRefund(ctx, "query_refund", r)
}

func (g *account) findRefund(ctx context.Context, call string, r *gateway.Refund) (gateway.Notice, error) {
	if r.GatewayRefundID != "" {
		var got refund
		_, err := g.ask(ctx, http.MethodGet, "/v1/refunds/"+url.PathEscape(r.GatewayRefundID), "", nil, &got)
		if err != nil {
			return gateway.Notice{}, err
		}
		return refundAnswer(call, &got), nil
	}
	for after := ""; ; {
		form := url.Values{"payment_intent": {r.TransactionID}, "limit": {"100"}}
		if after != "" {
			form.Set("starting_after", after)
		}
		var page struct {
			Data []*refund `json:"data"`
			More bool      `json:"has_more"`
		}
		if _, err := g.ask(ctx, http.MethodGet, "/v1/refunds", "", form, &page); err != nil {
			return gateway.Notice{}, err
		}
		last := ""
		for _, one := range page.Data {
			if one != nil && one.Metadata.RefundNo == r.RefundNo {
				return refundAnswer(call, one), nil
			}
			if one != nil {
				last = one.ID
			}
		}
		if !page.More || last == "" || last == after {
			return gateway.Notice{}, gateway.ErrNoTrade
		}
		after = last
	}
}
