package stripe

import (
	"strings"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/gateway"
)

// metadata is the metadata that ledgerd sets on payments and refunds.
type metadata struct {
	OutTradeNo string `json:"out_trade_no"`
	RefundNo   string `json:"refund_no"`
}

// intent is a PaymentIntent.
type intent struct {
	ID             string   `json:"id"`
	Object         string   `json:"object"`
	Status         string   `json:"status"`
	Amount         int64    `json:"amount"`
	AmountReceived int64    `json:"amount_received"`
	Currency       string   `json:"currency"`
	ClientSecret   string   `json:"client_secret"`
	LatestCharge   string   `json:"latest_charge"`
	Livemode       bool     `json:"livemode"`
	Metadata       metadata `json:"metadata"`
	LastError      struct {
		Code        string `json:"code"`
		DeclineCode string `json:"decline_code"`
		Message     string `json:"message"`
	} `json:"last_payment_error"`
}

// kind reads the status. requires_payment_method is also the status of an intent whose payment was declined.
func (p *intent) kind() gateway.Kind {
	switch p.Status {
	case "succeeded":
		return gateway.Paid
	case "canceled":
		return gateway.Closed
	case "requires_payment_method":
		if p.LastError.Code != "" {
			return gateway.Declined
		}
	}
	return gateway.Pending
}

func (p *intent) notice() gateway.Notice {
	n := gateway.Notice{Kind: p.kind(), OutTradeNo: p.Metadata.OutTradeNo, TransactionID: p.ID,
		Currency: strings.ToUpper(p.Currency)}
	if n.Amount = p.amountOf(n.Kind); n.Kind == gateway.Declined {
		code := p.LastError.Code
		if p.LastError.DeclineCode != "" {
			code += "_" + p.LastError.DeclineCode
		}
		n.Code, n.Text = gateway.Reason(code, p.LastError.Message)
	}
	if _, ok := decimalsOf(n.Currency); !ok {
		n.Foreign = "currency " + n.Currency
	}
	return n
}

// amountOf returns the received amount of a paid payment, else the requested amount.
func (p *intent) amountOf(kind gateway.Kind) amount.Decimal {
	if kind == gateway.Paid {
		return major(p.AmountReceived, p.Currency)
	}
	return major(p.Amount, p.Currency)
}

func major(n int64, currency string) amount.Decimal {
	scale, ok := decimalsOf(strings.ToUpper(currency))
	if !ok {
		return amount.Decimal{}
	}
	return gateway.Major(n, scale)
}

// refund is a Refund.
type refund struct {
	ID            string   `json:"id"`
	Object        string   `json:"object"`
	Status        string   `json:"status"`
	Amount        int64    `json:"amount"`
	Currency      string   `json:"currency"`
	PaymentIntent string   `json:"payment_intent"`
	FailureReason string   `json:"failure_reason"`
	Metadata      metadata `json:"metadata"`
}

// notice reads the status: pending, requires_action, succeeded, failed or canceled. A refund that succeeded may fail
// days later, when the bank returns the money.
func (r *refund) notice() gateway.Notice {
	n := gateway.Notice{Kind: gateway.RefundPending, OutTradeNo: r.Metadata.OutTradeNo, TransactionID: r.PaymentIntent,
		RefundNo: r.Metadata.RefundNo, GatewayRefundID: r.ID, Currency: strings.ToUpper(r.Currency),
		Amount: major(r.Amount, r.Currency)}
	switch r.Status {
	case "succeeded":
		n.Kind = gateway.Refunded
	case "failed", "canceled":
		n.Kind = gateway.RefundFailed
		n.Code, n.Text = gateway.Reason(r.FailureReason, "")
	}
	if _, ok := decimalsOf(n.Currency); !ok {
		n.Foreign = "currency " + n.Currency
	}
	return n
}

func lower(currency string) string { return strings.ToLower(currency) }
