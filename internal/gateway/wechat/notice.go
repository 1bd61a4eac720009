package wechat

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/ledgerd/ledgerd/internal/gateway"
)

// window is the greatest allowed difference between the time of a signature and our clock.
const window = 5 * time.Minute

// verify checks the signature of a notice or an answer. Probes, whose signature begins with WECHATPAY/SIGNTEST/, fail
// as any wrong signature.
func (g *account) verify(h http.Header, body []byte, now time.Time) error {
	stamp, nonce := h.Get("Wechatpay-Timestamp"), h.Get("Wechatpay-Nonce")
	if err := gateway.CheckWindow(stamp, now, window); err != nil {
		return err
	}
	key := g.verification[h.Get("Wechatpay-Serial")]
	if key == nil {
		return fmt.Errorf("%w: its key is not among public_keys", gateway.ErrForged)
	}
	signed := append([]byte(stamp+"\n"+nonce+"\n"), body...)
	if !gateway.VerifiesRSA(key, append(signed, '\n'), h.Get("Wechatpay-Signature")) {
		return fmt.Errorf("%w: the signature is wrong (WeChat Pay's probes are wrong on purpose)", gateway.ErrForged)
	}
	return nil
}

type envelope struct {
	ID         string `json:"id"`
	CreateTime string `json:"create_time"`
	EventType  string `json:"event_type"`
	Resource   struct {
		Algorithm      string `json:"algorithm"`
		Ciphertext     string `json:"ciphertext"`
		AssociatedData string `json:"associated_data"`
		Nonce          string `json:"nonce"`
	} `json:"resource"`
}

// Notice reads a notice.
func (g *account) Notice(h http.Header, body []byte, now time.Time) (gateway.Notice, error) {
	if err := g.verify(h, body, now); err != nil {
		return gateway.Notice{}, err
	}
	var e envelope
	if err := json.Unmarshal(body, &e); err != nil || e.ID == "" {
		return gateway.Notice{}, fmt.Errorf("%w: it is not the JSON of a notice", gateway.ErrFormat)
	}
	n, err := g.about(&e)
	n.ID = e.ID
	if n.At.IsZero() {
		n.At = timeOf(e.CreateTime)
	}
	return n, err
}

// refundEvents maps events about refunds to kinds of notices.
var refundEvents = map[string]gateway.Kind{"REFUND.SUCCESS": gateway.Refunded, "REFUND.CLOSED": gateway.RefundFailed,
	"REFUND.ABNORMAL": gateway.RefundAbnormal}

func (g *account) about(e *envelope) (gateway.Notice, error) {
	kind, isRefund := refundEvents[e.EventType]
	if e.EventType != "TRANSACTION.SUCCESS" && !isRefund {
		return gateway.Notice{Kind: gateway.Other}, nil
	}
	text, err := g.decrypt(e)
	if err != nil {
		return gateway.Notice{}, err
	}
	if isRefund {
		var r refundResource
		if err := json.Unmarshal(text, &r); err != nil {
			return gateway.Notice{}, fmt.Errorf("%w: it has no refund", gateway.ErrFormat)
		}
		r.refund.Status = r.RefundStatus
		n := r.notice()
		if n.Kind != kind {
			return n, fmt.Errorf("%w: event and refund_status contradict each other", gateway.ErrFormat)
		}
		if r.MchID != g.mchid {
			n.Foreign = "mchid " + r.MchID
		}
		return n, nil
	}
	var t transaction
	if err := json.Unmarshal(text, &t); err != nil {
		return gateway.Notice{}, fmt.Errorf("%w: it has no transaction", gateway.ErrFormat)
	}
	n, err := g.transaction(&t)
	if err == nil && n.Kind != gateway.Paid {
		err = fmt.Errorf("%w: event and trade_state contradict each other", gateway.ErrFormat)
	}
	return n, err
}

// decrypt opens the resource of a notice with any of the keys.
func (g *account) decrypt(e *envelope) ([]byte, error) {
	sealed, err := base64.StdEncoding.DecodeString(e.Resource.Ciphertext)
	if err != nil || e.Resource.Algorithm != "AEAD_AES_256_GCM" {
		return nil, fmt.Errorf("%w: the resource is not in AEAD_AES_256_GCM", gateway.ErrFormat)
	}
	for _, key := range g.decryption {
		if text, ok := open(key, e.Resource.Nonce, e.Resource.AssociatedData, sealed); ok {
			return text, nil
		}
	}
	return nil, fmt.Errorf("%w: none of api_v3_keys decrypts it", gateway.ErrFormat)
}

func open(key []byte, nonce, associated string, sealed []byte) ([]byte, bool) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, false
	}
	box, err := cipher.NewGCM(block)
	if err != nil || len(nonce) != box.NonceSize() {
		return nil, false
	}
	text, err := box.Open(nil, []byte(nonce), sealed, []byte(associated))
	return text, err == nil
}

// transaction is a payment, in notices and answers.
type transaction struct {
	AppID         string `json:"appid"`
	MchID         string `json:"mchid"`
	OutTradeNo    string `json:"out_trade_no"`
	TransactionID string `json:"transaction_id"`
	TradeState    string `json:"trade_state"`
	StateText     string `json:"trade_state_desc"`
	SuccessTime   string `json:"success_time"`
	Amount        struct {
		Total    int64  `json:"total"` // payer_total is what remains after discounts
		Currency string `json:"currency"`
	} `json:"amount"`
}

// states are the states of payments. REFUND means that a paid one was refunded, in part or in whole.
var states = map[string]gateway.Kind{"SUCCESS": gateway.Paid, "REFUND": gateway.Paid, "NOTPAY": gateway.Pending,
	"USERPAYING": gateway.Pending, "ACCEPT": gateway.Pending, "CLOSED": gateway.Closed, "REVOKED": gateway.Closed,
	"PAYERROR": gateway.Declined}

func (g *account) transaction(t *transaction) (gateway.Notice, error) {
	n := gateway.Notice{Kind: states[t.TradeState], OutTradeNo: t.OutTradeNo, TransactionID: t.TransactionID,
		Amount: gateway.Major(t.Amount.Total, decimals), Currency: currency(t.Amount.Currency),
		At: timeOf(t.SuccessTime)}
	switch {
	case n.Kind == "":
		return n, fmt.Errorf("%w: trade_state is unknown", gateway.ErrFormat)
	case t.MchID != g.mchid:
		n.Foreign = "mchid " + t.MchID
	case !g.knows(t.AppID):
		n.Foreign = "appid " + t.AppID
	}
	if n.Kind == gateway.Declined {
		n.Code, n.Text = gateway.Reason(t.TradeState, t.StateText)
	}
	return n, nil
}

func currency(code string) string {
	if code == "" { // the API takes no other
		return "CNY"
	}
	return code
}

// refund is a refund, in answers. In notices its status has another name.
type refund struct {
	OutTradeNo    string `json:"out_trade_no"`
	TransactionID string `json:"transaction_id"`
	OutRefundNo   string `json:"out_refund_no"`
	RefundID      string `json:"refund_id"`
	Status        string `json:"status"`
	SuccessTime   string `json:"success_time"`
	Amount        struct {
		Refund   int64  `json:"refund"` // payer_refund is without discounts
		Currency string `json:"currency"`
	} `json:"amount"`
}

type refundResource struct {
	refund
	MchID        string `json:"mchid"`
	RefundStatus string `json:"refund_status"`
}

var refundStates = map[string]gateway.Kind{"SUCCESS": gateway.Refunded, "PROCESSING": gateway.RefundPending,
	"CLOSED": gateway.RefundFailed, "ABNORMAL": gateway.RefundAbnormal}

func (r *refund) notice() gateway.Notice {
	n := gateway.Notice{Kind: refundStates[r.Status], OutTradeNo: r.OutTradeNo, TransactionID: r.TransactionID,
		RefundNo: r.OutRefundNo, GatewayRefundID: r.RefundID, Amount: gateway.Major(r.Amount.Refund, decimals),
		Currency: currency(r.Amount.Currency), At: timeOf(r.SuccessTime)}
	if n.Kind == gateway.RefundFailed || n.Kind == gateway.RefundAbnormal {
		n.Code, n.Text = gateway.Reason(r.Status, "")
	}
	return n
}

func timeOf(text string) time.Time {
	at, _ := time.Parse(time.RFC3339, text) // zero: not stated
	return at
}

// Acknowledge answers by status and body: a FAIL with status 200 would be taken for success.
func (g *account) Acknowledge(ok bool) gateway.Ack {
	if ok {
		return gateway.Ack{Status: http.StatusOK, ContentType: contentType, Body: []byte(`{"code":"SUCCESS"}`)}
	}
	return fail(http.StatusServiceUnavailable, "SEND_AGAIN")
}

const contentType = "application/json; charset=utf-8"

func fail(status int, message string) gateway.Ack {
	return gateway.Ack{Status: status, ContentType: contentType, Body: []byte(`{"code":"FAIL","message":"` + message +
		`"}`)}
}
