package verifytest

import (
	"context"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// notices makes a delivered SMS and a queued e-mail.
func (b *Books) notices() {
	b.t.Helper()
	tester := commit.Caller{Tenant: Demo, Principal: "tester", RequestID: "req-paid"}
	accept := func(p notify.Params) int64 {
		out, err := b.engine.Do(context.Background(), flow.Submission{Tenant: Demo, RequestID: tester.RequestID,
			Command: flow.Notify(&notify.SendCommand{Caller: tester, Params: p}), Rows: 4, Bytes: 100})
		if err != nil {
			b.t.Fatal(err)
		}
		return out.Answer.(*notify.Message).ID
	}
	arrived := accept(notify.Params{Channel: send.SMS, Recipient: "+8613812345678", BusinessType: "order.paid",
		BizNo:   "paid-1-sms",
		Content: send.Content{Text: "Order 1 is paid."}})
	accept(notify.Params{Channel: send.Email, Recipient: "ada@example.com", BusinessType: "order.paid",
		BizNo:   "paid-1-mail",
		Content: send.Content{Subject: "Order 1 is paid.", Text: "Thank you."}})
	b.ask("req-report", flow.Notify(&notify.ReportCommand{Caller: tester, ID: arrived, Provider: "sms-1",
		Delivered: true}))
}
