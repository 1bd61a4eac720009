package provider

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
	"github.com/ledgerd/ledgerd/internal/settings"
)

// webhookSettings are the settings of kind webhook. They allow endpoints at addresses that are not public, over http,
// or at other ports.
type webhookSettings struct {
	Allow     []string `json:"allow"` // such as 10.1.0.0/16
	AllowHTTP bool     `json:"allow_http"`
	Ports     []uint16 `json:"ports"`
}

func (w *webhookSettings) urlPolicy() (webhook.URLPolicy, error) {
	g := webhook.URLPolicy{HTTP: w.AllowHTTP, Ports: w.Ports}
	for _, text := range w.Allow {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return g, fmt.Errorf("allow: %q is not a range of addresses such as 10.1.0.0/16", text)
		}
		g.Allow = append(g.Allow, p.Masked())
	}
	return g, nil
}

// URLPolicy returns the rules for endpoint addresses. The commands that store endpoints need them too.
func (f *File) URLPolicy() (webhook.URLPolicy, error) {
	var w webhookSettings
	if f == nil {
		return webhook.URLPolicy{}, nil
	}
	for _, s := range f.channels[send.Webhook] {
		if s.Kind == "webhook" {
			if err := settings.Decode(s.Options, &w); err != nil {
				return webhook.URLPolicy{}, err
			}
		}
	}
	return w.urlPolicy()
}

func checkWebhook(_ *Settings, options map[string]any) error {
	var w webhookSettings
	if err := settings.Decode(options, &w); err != nil {
		return err
	}
	_, err := w.urlPolicy()
	return err
}

// buildWebhook returns the server's sender, which was built with URLPolicy.
func buildWebhook(e *Env, _ *Settings, _ map[string]any, _ map[int32]map[string]any) (send.Sender, error) {
	if e.Webhooks == nil {
		return nil, errors.New("kind: webhook requires a server with a master key")
	}
	return e.Webhooks, nil
}
