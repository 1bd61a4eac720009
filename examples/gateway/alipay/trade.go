package alipay

import (
	"errors"

	"github.com/ledgerd/ledgerd/examples/gateway/book"
)

var noTrade = business("ACQ.TRADE_NOT_EXIST", "交易不存在")

// trade finds the payment of a request, which the payer must have opened, and its money.
func (g *Gateway) trade(q *request) (*book.Payment, *book.Transaction, *failure) {
	p := g.find(q)
	if p == nil || p.Status == book.Unopened {
		return nil, nil, noTrade
	}
	t := p.First()
	if id := q.has("trade_no"); id != "" && t != nil {
		t = p.Transaction(id)
	}
	return p, t, nil
}

func (g *Gateway) query(q *request) (any, *failure) {
	p, t, fail := g.trade(q)
	if fail != nil {
		return nil, fail
	}
	n := node{"out_trade_no": p.Number, "trade_no": p.ID, "trade_status": "WAIT_BUYER_PAY",
		"total_amount": book.Format(p.Amount, 2), "buyer_logon_id": "159****5620", "buyer_user_id": buyer,
		"buyer_pay_amount": "0.00", "receipt_amount": "0.00", "invoice_amount": "0.00", "point_amount": "0.00"}
	switch p.Status {
	case book.Closed:
		n["trade_status"] = "TRADE_CLOSED"
	case book.Paid:
		total := book.Format(t.Amount, t.Scale)
		n["trade_no"], n["total_amount"], n["buyer_pay_amount"], n["receipt_amount"] = t.ID, total, total, total
		n["send_pay_date"], n["trade_status"] = clock(t.At), "TRADE_SUCCESS"
		if t.Currency != "CNY" {
			n["trans_currency"] = t.Currency
		}
		switch {
		case g.Book.GivenBack(p, t.ID) >= t.Amount:
			n["trade_status"] = "TRADE_CLOSED"
		case !t.FinishedAt.IsZero():
			n["trade_status"] = "TRADE_FINISHED"
		}
	case book.Unopened, book.Payable, book.Processing, book.Declined:
	}
	return n, nil
}

func (g *Gateway) close(q *request) (any, *failure) {
	p, _, fail := g.trade(q)
	if fail != nil {
		return nil, fail
	}
	if _, err := g.Book.Act(name, p.Key, book.Act{Do: "close"}); err != nil {
		return nil, business("ACQ.TRADE_STATUS_ERROR", "交易状态不合法")
	}
	return node{"trade_no": p.ID, "out_trade_no": p.Number}, nil
}

func (g *Gateway) refund(q *request) (any, *failure) {
	p, t, fail := g.trade(q)
	if fail != nil {
		return nil, fail
	}
	number := q.has("out_request_no")
	amount, err := book.Parse(q.has("refund_amount"), 2)
	switch {
	case err != nil:
		return nil, business("ACQ.INVALID_PARAMETER", "参数无效: refund_amount")
	case t == nil:
		return nil, business("ACQ.TRADE_STATUS_ERROR", "交易状态不合法")
	case number == "" && amount != t.Amount:
		return nil, business("ACQ.INVALID_PARAMETER", "参数无效: out_request_no")
	case number == "":
		number = p.Number
	}
	r, existed, err := g.Book.Refund(book.Refund{Gateway: name, Key: g.RefundKey(p.Number, number), Number: number,
		ID: tradeNo(), Payment: p.Key, Transaction: t.ID, Amount: amount, Reason: q.has("refund_reason")}, "", true)
	var state *book.StateError
	switch {
	case errors.Is(err, book.ErrDifferent):
		return nil, business("ACQ.DISCORDANT_REPEAT_REQUEST", "不一致的请求")
	case errors.Is(err, book.ErrTooMuch):
		return nil, business("ACQ.REFUND_AMT_NOT_EQUAL_TOTAL", "退款金额超限")
	case errors.Is(err, book.ErrRefused):
		return nil, business("ACQ.SELLER_BALANCE_NOT_ENOUGH", "卖家余额不足")
	case errors.As(err, &state):
		return nil, business("ACQ.TRADE_HAS_FINISHED", "交易已完结")
	case err != nil:
		return nil, noTrade
	}
	r = g.Book.PlayRefund(q.r.Context(), r)
	if r.Status == book.RefundFailed {
		return nil, business("ACQ.REFUND_CHARGE_ERROR", "退收费异常")
	}
	change := "Y"
	if existed || r.Status != book.RefundSucceeded {
		change = "N"
	}
	return node{"trade_no": t.ID, "out_trade_no": p.Number, "buyer_logon_id": "159****5620", "fund_change": change,
		"refund_fee": book.Format(g.Book.GivenBack(p, t.ID), 2), "buyer_user_id": buyer}, nil
}

// refundQuery answers success without a status for a refund that failed or does not exist.
func (g *Gateway) refundQuery(q *request) (any, *failure) {
	p, _, fail := g.trade(q)
	if fail != nil {
		return nil, fail
	}
	number := q.has("out_request_no")
	if number == "" {
		return nil, business("ACQ.INVALID_PARAMETER", "参数无效: out_request_no")
	}
	r, err := g.Book.FindRefund(name, g.RefundKey(p.Number, number))
	if err != nil || r.Status != book.RefundSucceeded {
		return node{}, nil
	}
	return node{"trade_no": r.Transaction, "out_trade_no": p.Number, "out_request_no": r.Number,
		"refund_amount": book.Format(r.Amount, 2), "total_amount": book.Format(p.Transaction(r.Transaction).Amount, 2),
		"refund_status": "REFUND_SUCCESS"}, nil
}
