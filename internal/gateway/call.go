package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/httpsend"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// Ask makes one request. Its error is a *CallError, also if the response is incomplete.
func (a *Account) Ask(ctx context.Context, r *httpsend.Request) (*httpsend.Answer, error) {
	answer, f := a.Client.Do(ctx, r)
	switch {
	case f != nil:
		outcome := map[send.Outcome]Outcome{send.Temporary: NotSent, send.Refused: Refused}[f.Outcome]
		return nil, &CallError{Outcome: outcome, Code: httpsend.Code(f.Code), Text: f.Text, RetryAfter: f.RetryAfter}
	case answer.Cut:
		return nil, &CallError{Outcome: Unknown, Code: "answer_cut", Text: "the answer is too long or incomplete"}
	}
	return answer, nil
}

// Failed returns a *CallError with a provider's error code and text, cleaned. The answer may be nil.
func Failed(outcome Outcome, dialect, code, text string, answer *httpsend.Answer) *CallError {
	e := &CallError{Outcome: outcome, Code: httpsend.Code(dialect, code), Text: httpsend.Clean(nil, text)}
	if answer != nil {
		e.RetryAfter = answer.RetryAfter
	}
	return e
}

// BadAnswer returns the error of an answer that is not in the provider's format, or not signed.
func BadAnswer(dialect, text string) *CallError {
	return Failed(Unknown, dialect, "unreadable", text, nil)
}

// ByStatus classifies an HTTP status without a known error code. said: the body is an error of the provider's own.
// A 4xx response means that the call had no effect. It is final only if the provider itself refuses the content of the
// request: a wrong key, a missing permission or a proxy's response can be corrected, and says nothing about the
// payment. A 5xx response is ambiguous, and one below 400 cannot be interpreted.
func ByStatus(status int, said bool) Outcome {
	switch {
	case status < 400 || status >= 500:
		return Unknown
	case !said, status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusTooManyRequests:
		return NotSent
	}
	return Refused
}

// Invalid returns the error of a payment or refund that violates a rule of the gateway and was not sent.
func Invalid(err error) *CallError {
	return &CallError{Outcome: Refused, Code: "invalid", Text: err.Error()}
}

// AfterRefusedCreate returns the state of a payment whose Create was refused because it is paid or closed, or the
// refusal. It also returns the errors of Create that are no refusals. state reads the payment from the provider.
func AfterRefusedCreate(refusal error, state func() (Notice, error)) (Notice, error) {
	var e *CallError
	if !errors.As(refusal, &e) || e.Outcome != Refused {
		return Notice{}, refusal
	}
	n, err := state()
	if err != nil || n.Kind == Pending {
		return Notice{}, refusal
	}
	return n, nil
}

// AfterClose returns the notice of a Close that ended with an error or nil. If it was refused, the payment is paid or
// closed already, or is too young to be closed. state reads the payment from the provider.
func AfterClose(p *Payment, err error, state func() (Notice, error)) (Notice, error) {
	if err == nil {
		return Notice{ID: AnswerID("close", Closed, p.OutTradeNo), Kind: Closed, OutTradeNo: p.OutTradeNo}, nil
	}
	var e *CallError
	if !errors.As(err, &e) || e.Outcome != Refused {
		return Notice{}, err
	}
	n, unknown := state()
	switch {
	case unknown != nil:
		return Notice{}, unknown
	case n.Kind == Pending:
		e.Outcome = NotSent
		return Notice{}, e
	}
	return n, nil
}

// AnswerID returns the Notice.ID of an answer.
func AnswerID(call string, kind Kind, parts ...string) string {
	return httpsend.Cut(call+"/"+string(kind)+"/"+strings.Join(parts, "/"), MaxID)
}

// Reason returns Code and Text of a notice, cleaned. Without a code both are empty.
func Reason(code, text string) (string, string) {
	if code == "" && text == "" {
		return "", ""
	}
	return httpsend.Code(code), httpsend.Clean(nil, text)
}

// Minor returns a positive amount in minor units with the given number of decimals. field is its name in errors.
func Minor(field string, d amount.Decimal, decimals uint8) (string, error) {
	n, err := d.Minor(decimals)
	switch {
	case errors.Is(err, amount.ErrTooPrecise):
		return "", fmt.Errorf("%s: has more than %d decimals", field, decimals)
	case err != nil || d.Coef.Sign() <= 0 || len(n.String()) > maxDigits:
		return "", fmt.Errorf("%s: must be positive, with at most %d digits", field, maxDigits)
	}
	return n.String(), nil
}

// Major returns the amount of n minor units.
func Major(n int64, decimals uint8) amount.Decimal {
	return amount.NewDecimal(amount.FromInt64(n), decimals)
}

// maxDigits keeps amounts within 64 bits, and exact in JSON parsers that use doubles.
const maxDigits = 15

// CheckNumber checks one of our numbers: 1 to limit characters, each a letter, a digit or in others.
func CheckNumber(field, number, others string, limit int) error {
	ok := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(others, r)
	}
	if number == "" || len(number) > limit || strings.IndexFunc(number, func(r rune) bool { return !ok(r) }) >= 0 {
		allowed := "letters and digits"
		if others != "" {
			allowed = "letters, digits and " + strconv.Quote(others)
		}
		return fmt.Errorf("%s: must be at most %d characters of %s for this gateway", field, limit, allowed)
	}
	return nil
}

// CheckText checks a text for the payer: limit counts characters.
func CheckText(field, text string, limit int) error {
	if n := len([]rune(text)); n > limit {
		return fmt.Errorf("%s: has %d characters, at most %d", field, n, limit)
	}
	if strings.IndexFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' }) >= 0 {
		return fmt.Errorf("%s: has control characters, or is not UTF-8", field)
	}
	return nil
}

// CheckPayType returns the pay type of a payment: its own, or the dialect's first.
func CheckPayType(name string, types []PayType) (PayType, error) {
	if name == "" {
		return types[0], nil
	}
	names := make([]string, len(types))
	for i, t := range types {
		if names[i] = t.Name; t.Name == name {
			return t, nil
		}
	}
	return PayType{}, fmt.Errorf("pay_type: must be one of %s", strings.Join(names, ", "))
}

// CheckWindow returns ErrForged for a time of a signature, in seconds since 1970, that is further from now than window.
func CheckWindow(stamp string, now time.Time, window time.Duration) error {
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	switch {
	case err != nil:
		return fmt.Errorf("%w: its time is missing or unreadable", ErrForged)
	case seconds < now.Add(-window).Unix() || seconds > now.Add(window).Unix():
		return fmt.Errorf("%w: its time is %d s from ours, at most %d s are allowed", ErrForged, now.Unix()-seconds,
			int64(window.Seconds()))
	}
	return nil
}
