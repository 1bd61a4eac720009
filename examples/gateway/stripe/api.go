package stripe

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/ledgerd/ledgerd/examples/gateway/book"
)

const maxBody = 1 << 20

// Routes adds the API.
func (g *Gateway) Routes(mux *http.ServeMux) {
	g.answers = map[string]recorded{}
	mux.HandleFunc("POST /v1/payment_intents", g.post("create", g.create))
	mux.HandleFunc("GET /v1/payment_intents/{id}", g.get("query", g.retrieve))
	mux.HandleFunc("GET /v1/payment_intents/search", g.get("query", g.search))
	mux.HandleFunc("GET /v1/payment_intents", g.get("query", g.search))
	mux.HandleFunc("POST /v1/payment_intents/{id}/cancel", g.post("close", g.cancel))
	mux.HandleFunc("POST /v1/refunds", g.post("refund", g.refund))
	mux.HandleFunc("GET /v1/refunds/{id}", g.get("query_refund", g.retrieveRefund))
	mux.HandleFunc("GET /v1/refunds", g.get("query_refund", g.listRefunds))
}

type call struct {
	r    *http.Request
	form url.Values
	once string
}

func answer(status int, o any) book.Answer {
	body, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		panic(err)
	}
	return book.Answer{Status: status, Body: body, Header: http.Header{"Content-Type": {"application/json"},
		"Request-Id": {"req_" + book.Alnum(14)}, "Stripe-Version": {apiVersion}}}
}

func fail(status int, kind, code, param, message string) book.Answer {
	e := object{"type": kind, "message": message}
	if code != "" {
		e["code"] = code
	}
	if param != "" {
		e["param"] = param
	}
	return answer(status, object{"error": e})
}

func invalid(code, param, format string, args ...any) book.Answer {
	return fail(http.StatusBadRequest, "invalid_request_error", code, param, fmt.Sprintf(format, args...))
}

func overloaded(status int) book.Answer {
	if status == http.StatusTooManyRequests {
		return fail(status, "invalid_request_error", "rate_limit", "", "Request rate limit exceeded.")
	}
	return fail(status, "api_error", "", "", "Sorry, an error occurred.")
}

func (g *Gateway) get(operation string, f func(*call) book.Answer) http.HandlerFunc {
	return g.handle(operation, func(c *call) book.Answer { return f(c) })
}

// post answers a repeated Idempotency-Key with the recorded answer or, after a restart, from the object that the key
// created.
func (g *Gateway) post(operation string, f func(*call) book.Answer) http.HandlerFunc {
	return g.handle(operation, func(c *call) book.Answer {
		if c.once == "" {
			return f(c)
		}
		sum := sha256.Sum256([]byte(c.r.URL.Path + "?" + c.form.Encode()))
		request := hex.EncodeToString(sum[:])
		g.mu.Lock()
		first, ok := g.answers[c.once]
		if !ok {
			g.answers[c.once] = recorded{request: request}
		}
		g.mu.Unlock()
		switch {
		case ok && first.request != request:
			return fail(http.StatusBadRequest, "idempotency_error", "", "",
				"Keys for idempotent requests can only be used with the same parameters they were first used with.")
		case ok && first.answer.Status == 0:
			return fail(http.StatusConflict, "idempotency_error", "idempotency_key_in_use", "",
				"There is currently another in-progress request using this Idempotent Key.")
		case ok:
			again := first.answer
			again.Header = again.Header.Clone()
			again.Header.Set("Idempotent-Replayed", "true")
			return again
		}
		a := f(c)
		g.mu.Lock()
		defer g.mu.Unlock()
		g.answers[c.once] = recorded{request, a}
		return a
	})
}

func (g *Gateway) handle(operation string, f func(*call) book.Answer) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := &call{r: r, once: r.Header.Get("Idempotency-Key")}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err == nil {
			c.form, err = url.ParseQuery(string(body))
		}
		b := book.Call{Gateway: name, Operation: operation, Fail: overloaded,
			Effect: func() book.Answer { return f(c) }}
		switch {
		case err != nil:
			b.Effect = func() book.Answer { return invalid("", "", "The request body is not a form: %v", err) }
		case !g.authorized(r):
			b.Effect = func() book.Answer {
				return fail(http.StatusUnauthorized, "invalid_request_error", "", "", "Invalid API Key provided.")
			}
		case len(c.once) > 255:
			b.Effect = func() book.Answer { return invalid("", "", "Idempotency-Key is longer than 255 characters.") }
		default:
			b.Number = g.number(c)
		}
		g.Book.Serve(w, r, b)
	}
}

func (g *Gateway) authorized(r *http.Request) bool {
	key, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if user, _, basic := r.BasicAuth(); basic {
		key, ok = user, true
	}
	return ok && subtle.ConstantTimeCompare([]byte(key), []byte(g.Keys.Secret)) == 1
}

// number returns the merchant's number, by which faults are planned.
func (g *Gateway) number(c *call) string {
	if n := c.form.Get("metadata[" + numberAt + "]"); n != "" {
		return n
	}
	for _, intent := range []string{c.r.PathValue("id"), c.form.Get("payment_intent"),
		c.r.URL.Query().Get("payment_intent")} {
		if r, err := g.Book.FindRefund(name, intent); err == nil {
			intent = r.Transaction
		}
		if p, _ := g.find(intent); p != nil {
			return p.Number
		}
	}
	if m := query.FindStringSubmatch(c.r.URL.Query().Get("query")); m != nil {
		return m[2]
	}
	return ""
}

// find returns a payment, and the transaction of the intent with this id.
func (g *Gateway) find(intent string) (*book.Payment, *book.Transaction) {
	if intent == "" {
		return nil, nil
	}
	p, err := g.Book.Payment(name, intent)
	if err != nil {
		if p, err = g.Book.ByTransaction(name, intent); err != nil {
			return nil, nil
		}
	}
	return p, p.Transaction(intent)
}

func missing(what, id, param string) book.Answer {
	return fail(http.StatusNotFound, "invalid_request_error", "resource_missing", param,
		fmt.Sprintf("No such %s: '%s'", what, id))
}

func (g *Gateway) create(c *call) book.Answer {
	amount, currency, bad := money(c.form)
	if bad != nil {
		return *bad
	}
	details, bad := readMetadata(c.form)
	if bad != nil {
		return *bad
	}
	key := "pi_" + book.Alnum(24)
	p := book.Payment{Gateway: name, Key: key, ID: key, Number: details["metadata."+numberAt], PayType: "intent",
		Amount: amount, Scale: scale(currency), Currency: currency, Description: c.form.Get("description"),
		Secret: key + "_secret_" + book.Alnum(25), Details: details}
	if p.Number == "" {
		p.Number = key
	}
	made, _, err := g.Book.Create(p, c.once)
	if err != nil {
		return fail(http.StatusBadRequest, "idempotency_error", "", "",
			"Keys for idempotent requests can only be used with the same parameters they were first used with.")
	}
	a := answer(http.StatusOK, g.intent(made, nil, true))
	g.Book.Play(c.r.Context(), made) // the answer remains that of the creation
	return a
}

var code = regexp.MustCompile(`^[a-z]{3}$`)

func money(form url.Values) (int64, string, *book.Answer) {
	currency := form.Get("currency")
	if !code.MatchString(strings.ToLower(currency)) {
		a := invalid("parameter_missing", "currency", "Missing required param: currency.")
		return 0, "", &a
	}
	amount, bad := units(form.Get("amount"), currency)
	return amount, strings.ToUpper(currency), bad
}

func units(text, currency string) (int64, *book.Answer) {
	amount, err := strconv.ParseInt(text, 10, 64)
	var bad book.Answer
	switch {
	case err != nil:
		bad = invalid("parameter_invalid_integer", "amount", "Invalid integer: %s", text)
	case amount < 1:
		bad = invalid("parameter_invalid_integer", "amount", "This value must be greater than or equal to 1.")
	case amount > 999999999999:
		bad = invalid("amount_too_large", "amount", "Amount is too large.")
	case scale(currency) == 3 && amount%10 != 0:
		bad = invalid("", "amount", "Amounts with three decimals must be divisible by 10.")
	case (strings.EqualFold(currency, "ISK") || strings.EqualFold(currency, "UGX")) && amount%100 != 0:
		bad = invalid("", "amount", "Amounts of this currency must be divisible by 100.")
	default:
		return amount, nil
	}
	return 0, &bad
}

func readMetadata(form url.Values) (map[string]string, *book.Answer) {
	details := map[string]string{}
	for k, v := range form {
		key, ok := strings.CutPrefix(k, "metadata[")
		if !ok {
			continue
		}
		key = strings.TrimSuffix(key, "]")
		if len(key) > 40 || len(v[0]) > 500 || len(details) == 50 {
			a := invalid("", k, "Metadata has at most 50 keys of 40 characters, with values of 500.")
			return nil, &a
		}
		details["metadata."+key] = v[0]
	}
	return details, nil
}

func (g *Gateway) retrieve(c *call) book.Answer {
	p, t := g.find(c.r.PathValue("id"))
	if p == nil {
		return missing("payment_intent", c.r.PathValue("id"), "intent")
	}
	return answer(http.StatusOK, g.intent(p, t, true))
}

var query = regexp.MustCompile(`^metadata\[(["'])` + numberAt + `["']\]:["']([^"']*)["']$`)

// search finds payments by metadata at once; the vendor's search has a delay.
func (g *Gateway) search(c *call) book.Answer {
	found, kind := []object{}, "list"
	number := ""
	if c.r.URL.Path == "/v1/payment_intents/search" {
		m := query.FindStringSubmatch(c.r.URL.Query().Get("query"))
		if m == nil {
			return invalid("", "query", "We were unable to parse your search query.")
		}
		number, kind = m[2], "search_result"
	}
	all := g.Book.Search(name, number)
	for i := len(all) - 1; i >= 0 && len(found) < 100; i-- {
		found = append(found, g.intent(all[i], nil, true))
		for j := 1; j < len(all[i].Transactions); j++ {
			found = append(found, g.intent(all[i], &all[i].Transactions[j], true))
		}
	}
	return answer(http.StatusOK, object{"object": kind, "url": c.r.URL.Path, "has_more": false, "data": found})
}

func (g *Gateway) cancel(c *call) book.Answer {
	p, t := g.find(c.r.PathValue("id"))
	if p == nil {
		return missing("payment_intent", c.r.PathValue("id"), "intent")
	}
	after, err := g.Book.Act(name, p.Key, book.Act{Do: "close"})
	var state *book.StateError
	switch {
	case errors.As(err, &state):
		status := g.intent(p, t, true)["status"]
		return answer(http.StatusBadRequest, object{"error": object{"type": "invalid_request_error",
			"code": "payment_intent_unexpected_state", "payment_intent": g.intent(p, t, true),
			"message": fmt.Sprintf("You cannot cancel this PaymentIntent because it has a status of %s.", status)}})
	case err != nil:
		return overloaded(http.StatusInternalServerError)
	}
	return answer(http.StatusOK, g.intent(after, nil, true))
}

func (g *Gateway) refund(c *call) book.Answer {
	intent := c.form.Get("payment_intent")
	if intent == "" && c.form.Get("charge") != "" {
		intent = "pi_" + strings.TrimPrefix(c.form.Get("charge"), "ch_")
	}
	p, t := g.find(intent)
	switch {
	case p == nil:
		return missing("payment_intent", intent, "payment_intent")
	case t == nil:
		return invalid("", "", "This PaymentIntent does not have a successful charge to refund.")
	}
	switch c.form.Get("reason") {
	case "", "duplicate", "fraudulent", "requested_by_customer":
	default:
		return invalid("", "reason",
			"Invalid reason: must be one of duplicate, fraudulent, or requested_by_customer")
	}
	details, bad := readMetadata(c.form)
	if bad != nil {
		return *bad
	}
	left := t.Amount - g.Book.GivenBack(p, t.ID)
	amount := left
	if c.form.Get("amount") != "" {
		if amount, bad = units(c.form.Get("amount"), t.Currency); bad != nil {
			return *bad
		}
	}
	key, number := "re_"+book.Alnum(24), details["metadata.refund_no"]
	if number == "" {
		number = key
	}
	made, _, err := g.Book.Refund(book.Refund{Gateway: name, Key: key, ID: key, Number: number, Payment: p.Key,
		Transaction: t.ID, Amount: amount, Reason: c.form.Get("reason"), Details: details}, c.once, true)
	switch {
	case errors.Is(err, book.ErrTooMuch) && left == 0:
		return invalid("charge_already_refunded", "", "Charge %s has already been refunded.", chargeID(t.ID))
	case errors.Is(err, book.ErrTooMuch):
		return invalid("", "amount", "Refund amount (%d) is greater than unrefunded amount on charge (%d)",
			amount, left)
	case errors.Is(err, book.ErrDifferent):
		return fail(http.StatusBadRequest, "idempotency_error", "", "",
			"Keys for idempotent requests can only be used with the same parameters they were first used with.")
	case err != nil:
		return invalid("insufficient_funds", "", "Your account has insufficient funds to cover this refund.")
	}
	a := answer(http.StatusOK, refund(made))
	g.Book.PlayRefund(c.r.Context(), made)
	return a
}

func (g *Gateway) retrieveRefund(c *call) book.Answer {
	r, err := g.Book.FindRefund(name, c.r.PathValue("id"))
	if err != nil {
		return missing("refund", c.r.PathValue("id"), "id")
	}
	return answer(http.StatusOK, refund(r))
}

func (g *Gateway) listRefunds(c *call) book.Answer {
	intent := c.r.URL.Query().Get("payment_intent")
	found := []object{}
	if p, _ := g.find(intent); p != nil {
		for _, r := range g.Book.Refunds(name, p.Key) {
			if r.Transaction == intent {
				found = append([]object{refund(r)}, found...) // the newest first
			}
		}
	}
	return answer(http.StatusOK, object{"object": "list", "url": "/v1/refunds", "has_more": false, "data": found})
}
