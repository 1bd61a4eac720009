package verifytest

import (
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/notify/code"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/notify/template"
)

// codes makes two versions of a template, and a verification code that was sent and tried.
func (b *Books) codes() {
	tester := commit.Caller{Tenant: Demo, Principal: "tester", RequestID: "req-code"}
	for _, text := range []string{"{{.code}} is it", "{{.code}} is your code"} {
		c, err := template.NewPut(tester, send.SMS, "code", "en",
			&template.Definition{Text: text, Variables: []template.Variable{{Name: "code", Kind: template.String}}})
		if err != nil {
			b.t.Fatal(err)
		}
		b.ask("req-template", flow.Template(c))
	}
	b.ask("req-code", &flow.SendCode{Issue: code.Issue{Caller: tester, Type: "login", Channel: send.SMS,
		Recipient: "+8613812345678", Code: code.New(6), Nonce: code.NewNonce(),
		Life: code.MaxLife, Interval: code.DefaultInterval, Daily: code.DefaultDaily},
		Template: template.Name{Tenant: Demo, Channel: send.SMS}})
	b.ask("req-try", flow.Code(&code.VerifyCommand{Caller: tester, Type: "login", Channel: send.SMS,
		Recipient: "+8613812345678", Code: "0", MissNonce: code.NewNonce()}))
}
