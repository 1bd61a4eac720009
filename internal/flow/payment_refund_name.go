package flow

import (
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/httpsend"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// needNames names the second names of a notice of how a refund ended, or that it will: those of the refund.
func (c *SettlePayment) needNames(tx *Tx) {
	c.alias, c.number, c.unlike = nil, nil, nil
	ends := c.Kind == gateway.Refunded || c.Kind == gateway.RefundFailed
	g := payment.GatewayKey{Tenant: c.Tenant, Gateway: c.Gateway}
	if ends && c.RefundNo != "" {
		name := numberName(g, c.OutTradeNo, c.RefundNo)
		c.number = tx.Payments().WantNotice(name)
		c.unlike = tx.Payments().WantNotice(payment.NoticeKey{Tenant: c.Tenant, Gateway: c.Gateway,
			ID: httpsend.Cut(name.ID+"/"+c.Currency, 256)})
	}
	if c.alias = c.number; c.GatewayRefundID != "" && (ends || c.Kind == gateway.RefundPending) {
		c.alias = tx.Payments().WantNotice(payment.RefundName(g, c.GatewayRefundID))
	}
}

// numberName is the second name of a notice about a refund by our number.
func numberName(g payment.GatewayKey, outTradeNo, refundNo string) payment.NoticeKey {
	return payment.RefundName(g, outTradeNo+"/"+refundNo)
}

// nameRefund gives the recorded notice of a refund of ours that succeeded, or will, its second name: another notice of
// that may not have our number.
func (c *SettlePayment) nameRefund(tx *Tx) {
	if c.Kind != gateway.RefundFailed && c.alias != nil && !c.alias.Exists {
		tx.Payments().AddName(c.alias, c.notice.Value.ID)
	}
}

// consoleNames are the names of a console refund, as far as the notice tells them: the gateway's id of it, and its
// number. One that has the number of a refund of ours, and is unlike it, cannot have these names.
func (c *SettlePayment) consoleNames() []*payment.NoticeRow {
	if r := c.refund.row; r != nil && r.Exists {
		return []*payment.NoticeRow{c.unlike}
	}
	return []*payment.NoticeRow{c.alias, c.number}
}

// nameConsole gives a console refund all its names, by which it is found: its number, too, which RefundPayment does not
// use then. first is the notice that told of it first.
func (c *SettlePayment) nameConsole(tx *Tx, first int64) {
	for _, name := range c.consoleNames() {
		if name != nil && !name.Exists {
			tx.Payments().AddName(name, first)
		}
	}
}
