package flow

import (
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/httpsend"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// needNames names the second names of a notice of how a refund ended, or that it will: those of the refund.
func (c *SettlePayment) needNames(tx *Tx) {
	c.alias, c.number = nil, nil
	ends := c.Kind == gateway.Refunded || c.Kind == gateway.RefundFailed
	g := payment.GatewayKey{Tenant: c.Tenant, Gateway: c.Gateway}
	if ends && c.RefundNo != "" {
		c.number = tx.Payments().WantNotice(numberName(g, c.OutTradeNo, c.RefundNo))
	}
	if c.alias = c.number; c.GatewayRefundID != "" && (ends || c.Kind == gateway.RefundPending) {
		c.alias = tx.Payments().WantNotice(secondName(g, c.GatewayRefundID))
	}
}

// numberName is the second name of a notice about a refund by our number.
func numberName(g payment.GatewayKey, outTradeNo, refundNo string) payment.NoticeKey {
	return secondName(g, outTradeNo+"/"+refundNo)
}

func secondName(g payment.GatewayKey, name string) payment.NoticeKey {
	return payment.NoticeKey{Tenant: g.Tenant, Gateway: g.Gateway, ID: httpsend.Cut("unknown_refund/"+name, 256)}
}

// nameRefund gives the recorded notice of a refund of ours that succeeded, or will, its second name: another notice of
// that may not have our number.
func (c *SettlePayment) nameRefund(tx *Tx) {
	if c.Kind != gateway.RefundFailed && c.alias != nil && !c.alias.Exists {
		tx.Payments().AddName(c.alias, c.notice.Value.ID)
	}
}

// nameConsole gives a console refund all its names, by which it is found: its number, too, which RefundPayment does not
// use then. first is the notice that told of it first.
func (c *SettlePayment) nameConsole(tx *Tx, first int64) {
	for _, name := range []*payment.NoticeRow{c.alias, c.number} {
		if name != nil && !name.Exists {
			tx.Payments().AddName(name, first)
		}
	}
}
