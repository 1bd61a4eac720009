package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ledgerd/ledgerd/internal/httpsend"
)

// checked checks the results of a dialect, and measures its calls.
type checked struct {
	Gateway
	metrics *metrics
	name    string
}

const (
	MaxID   = 256 // bytes of Notice.ID
	maxText = 300
	// maxNumber bounds the numbers of payments, transactions and refunds.
	maxNumber = 64
	// maxCredential bounds what the payer's client needs, in bytes of JSON.
	maxCredential = 32 << 10
)

// Notice returns a notice of kind Unreadable, with ErrFormat, for a callback that cannot be read or stored.
func (g *checked) Notice(header http.Header, body []byte, now time.Time) (Notice, error) {
	n, err := g.Gateway.Notice(header, body, now)
	if err == nil {
		err = n.check()
	}
	if errors.Is(err, ErrFormat) {
		hash := sha256.Sum256(body)
		n = Notice{ID: "unreadable/" + hex.EncodeToString(hash[:]), Kind: Unreadable,
			Text: httpsend.Cut(strings.ToValidUTF8(err.Error(), ""), maxText)}
	}
	return n, err
}

// check checks that texts are UTF-8 without NUL, and short enough, and that the notice has what its kind requires.
func (n *Notice) check() error {
	for field, text := range map[string]string{"id": n.ID, "out_trade_no": n.OutTradeNo,
		"transaction_id": n.TransactionID, "refund_no": n.RefundNo, "gateway_refund_id": n.GatewayRefundID,
		"foreign": n.Foreign, "currency": n.Currency} {
		if len(text) > MaxID || !storable(text) {
			return fmt.Errorf("%w: %s is too long, or is not text", ErrFormat, field)
		}
	}
	switch {
	case len(n.OutTradeNo) > maxNumber, len(n.TransactionID) > maxNumber, len(n.RefundNo) > maxNumber:
		return fmt.Errorf("%w: a number is too long", ErrFormat)
	case len(n.Text) > maxText || len(n.Code) > 64 || !storable(n.Text) || !storable(n.Code):
		return fmt.Errorf("%w: the reason is too long, or is not text", ErrFormat)
	case n.ID == "", n.Kind == "":
		return fmt.Errorf("%w: it has no id or kind", ErrFormat)
	case n.Amount.Coef.Sign() < 0:
		return fmt.Errorf("%w: the amount is negative", ErrFormat)
	case n.Kind == Other:
		return nil
	case !n.Kind.Refund() && n.OutTradeNo == "", n.OutTradeNo == "" && n.TransactionID == "":
		return fmt.Errorf("%w: it names no payment", ErrFormat)
	case n.Kind == Paid && n.TransactionID == "":
		return fmt.Errorf("%w: it says paid and has no transaction id", ErrFormat)
	case (n.Kind == Paid || n.Kind == Refunded) && n.Foreign == "" && n.Amount.Coef.Sign() == 0:
		return fmt.Errorf("%w: it has no amount", ErrFormat)
	}
	return nil
}

// check checks that the credential can be stored.
func (c Credential) check() error {
	text, err := json.Marshal(c)
	if err != nil || len(text) > maxCredential {
		return fmt.Errorf("%w: the credential is too long, or is not text", ErrFormat)
	}
	for name, value := range c {
		if !storable(name) || !storable(value) {
			return fmt.Errorf("%w: the credential is not text", ErrFormat)
		}
	}
	return nil
}

func storable(text string) bool { return utf8.ValidString(text) && !strings.ContainsRune(text, 0) }

func (g *checked) Create(ctx context.Context, p *Payment) (Credential, Notice, error) {
	var c Credential
	n, err := g.call("create", p.OutTradeNo, "", func() (n Notice, err error) {
		if c, n, err = g.Gateway.Create(ctx, p); err == nil {
			err = c.check()
		}
		return n, err
	})
	return c, n, err
}

func (g *checked) Query(ctx context.Context, p *Payment) (Notice, error) {
	return g.call("query", p.OutTradeNo, "", func() (Notice, error) { return g.Gateway.Query(ctx, p) })
}

func (g *checked) Close(ctx context.Context, p *Payment) (Notice, error) {
	return g.call("close", p.OutTradeNo, "", func() (Notice, error) { return g.Gateway.Close(ctx, p) })
}

func (g *checked) Refund(ctx context.Context, r *Refund) (Notice, error) {
	return g.call("refund", r.OutTradeNo, r.RefundNo, func() (Notice, error) { return g.Gateway.Refund(ctx, r) })
}

func (g *checked) QueryRefund(ctx context.Context, r *Refund) (Notice, error) {
	return g.call("query_refund", r.OutTradeNo, r.RefundNo,
		func() (Notice, error) { return g.Gateway.QueryRefund(ctx, r) })
}

// call makes a call, and checks that the answer is about the payment or refund of the call.
func (g *checked) call(name, payment, refund string, do func() (Notice, error)) (Notice, error) {
	start := time.Now()
	n, err := do()
	if err == nil {
		err = n.check()
	}
	switch {
	case errors.Is(err, ErrFormat):
		err = BadAnswer("answer", err.Error())
	case err == nil && (n.OutTradeNo != payment || n.RefundNo != refund || n.Kind.Refund() != (refund != "") ||
		n.Kind == Other):
		err = BadAnswer("answer", "the answer is not about the payment or refund of the call")
	}
	g.metrics.called(g.name, name, err, time.Since(start))
	if err != nil {
		return Notice{}, err
	}
	return n, nil
}
