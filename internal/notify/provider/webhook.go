package provider

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
)

// webhookSettings say where endpoints may be, besides at public addresses by https.
type webhookSettings struct {
	Allow     []string `json:"allow"` // such as 10.1.0.0/16
	AllowHTTP bool     `json:"allow_http"`
	Ports     []uint16 `json:"ports"`
}

func (w *webhookSettings) guard() (webhook.Guard, error) {
	g := webhook.Guard{HTTP: w.AllowHTTP, Ports: w.Ports}
	for _, text := range w.Allow {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return g, fmt.Errorf("allow: %q is not a range of addresses such as 10.1.0.0/16", text)
		}
		g.Allow = append(g.Allow, p.Masked())
	}
	return g, nil
}

// Guard says where endpoints may be: those who keep endpoints have to know it too.
func (f *File) Guard() (webhook.Guard, error) {
	var w webhookSettings
	if f == nil {
		return webhook.Guard{}, nil
	}
	for _, s := range f.channels[send.Webhook] {
		if s.Kind == "webhook" {
			if err := decode(s.Options, &w); err != nil {
				return webhook.Guard{}, err
			}
		}
	}
	return w.guard()
}

func checkWebhook(_ *Settings, options map[string]any) error {
	var w webhookSettings
	if err := decode(options, &w); err != nil {
		return err
	}
	_, err := w.guard()
	return err
}

// buildWebhook finds the sender that the server has made with Guard.
func buildWebhook(e *Env, _ *Settings, _ map[string]any, _ map[int32]map[string]any) (send.Sender, error) {
	if e.Webhooks == nil {
		return nil, errors.New("kind: webhook requires a server with a master key")
	}
	return e.Webhooks, nil
}
