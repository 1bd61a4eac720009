package flow

import (
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/httpsend"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// needNames names the aliases of a notice about a final or pending refund: the refund's own numbers.
func (c *ApplyNotice) needNames(tx *Tx) {
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

// numberName is the alias of a refund's notices by our number.
func numberName(g payment.GatewayKey, outTradeNo, refundNo string) payment.NoticeKey {
	return payment.RefundName(g, outTradeNo+"/"+refundNo)
}

// nameRefund adds an alias to the recorded notice of one of our refunds, because a later notice about that refund may
// lack our number.
func (c *ApplyNotice) nameRefund(tx *Tx) {
	if c.Kind != gateway.RefundFailed && c.alias != nil && !c.alias.Exists {
		tx.Payments().AddName(c.alias, c.notice.Value.ID)
	}
}

// consoleNames are the aliases of a console refund that the notice tells: the gateway's id and the number. If one of
// our refunds uses the number with other content, the console refund is found by number and currency instead.
func (c *ApplyNotice) consoleNames() []*payment.NoticeRow {
	if r := c.refund.row; r != nil && r.Exists {
		return []*payment.NoticeRow{c.unlike}
	}
	return []*payment.NoticeRow{c.alias, c.number}
}

// nameConsole adds all aliases of a console refund, by which it is found. Its number is one of them, so RefundPayment
// cannot use that number. first is the id of its first notice.
func (c *ApplyNotice) nameConsole(tx *Tx, first int64) {
	for _, name := range c.consoleNames() {
		if name != nil && !name.Exists {
			tx.Payments().AddName(name, first)
		}
	}
}
