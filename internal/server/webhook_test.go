package server_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/server"
)

func endpoint(name string) *notifyv1.CreateEndpointRequest {
	return &notifyv1.CreateEndpointRequest{Name: name, Url: "https://hooks.example.com/" + name, Description: secretNote}
}

func init() {
	furnishers = append(furnishers, func(c *caller, x things, id []string) {
		ok(c, "Webhook.CreateEndpoint", endpoint(x.paid), new(notifyv1.CreateEndpointResponse), id...)
	})
	goWell = append(goWell, "Webhook.CreateEndpoint", "Webhook.ListEndpoints")
	for name, example := range map[string]func(x things) []proto.Message{
		"Webhook.CreateEndpoint": func(x things) []proto.Message {
			return all(&notifyv1.CreateEndpointRequest{Name: x.paid, Url: "https://walk.example.com"})
		},
		"Webhook.UpdateEndpoint": func(x things) []proto.Message {
			return all(&notifyv1.UpdateEndpointRequest{Name: x.paid, Enabled: proto.Bool(false)})
		},
		"Webhook.RotateSecret": func(x things) []proto.Message {
			return all(&notifyv1.RotateSecretRequest{Name: x.paid, SecretVersion: 1})
		},
		"Webhook.DeleteEndpoint": func(x things) []proto.Message { return all(&notifyv1.DeleteEndpointRequest{Name: x.paid}) },
		"Webhook.GetSecret":      func(x things) []proto.Message { return all(&notifyv1.GetSecretRequest{Name: x.paid}) },
		"Webhook.GetEndpoint":    func(x things) []proto.Message { return all(&notifyv1.GetEndpointRequest{Name: x.paid}) },
		"Webhook.ListEndpoints":  func(things) []proto.Message { return all(&notifyv1.ListEndpointsRequest{PageSize: 1}) },
	} {
		examples[name] = example
	}
	preparers = append(preparers, func(c *caller, tag string) {
		ok(c, "Webhook.CreateEndpoint", endpoint("hook-"+strings.ToLower(tag)), new(notifyv1.CreateEndpointResponse))
	})
	hook := func(tag string) string { return "hook-" + strings.ToLower(tag) }
	for name, c := range map[string]change{
		"Webhook.CreateEndpoint": {well: func(tag string) proto.Message { return endpoint("new-" + hook(tag)) }},
		"Webhook.UpdateEndpoint": {well: func(tag string) proto.Message {
			return &notifyv1.UpdateEndpointRequest{Name: hook(tag), Types: &notifyv1.EventTypes{Types: []string{"b", "a"}}}
		}},
		"Webhook.RotateSecret": {well: func(tag string) proto.Message {
			return &notifyv1.RotateSecretRequest{Name: hook(tag), SecretVersion: 1}
		}},
		"Webhook.DeleteEndpoint": {well: func(tag string) proto.Message { return &notifyv1.DeleteEndpointRequest{Name: hook(tag)} }},
	} {
		changes[name] = c
	}
}

// TestSecretsOfEndpointsAreForAdmins, who get both while one is being replaced; no answer of another call has them.
func TestSecretsOfEndpointsAreForAdmins(t *testing.T) {
	s := newSite(t)
	s.server.Stop()
	s.start(server.Options{Secret: secret.New()})
	admin, writer := &caller{s, s.key("one", "boss", access.Admin)}, &caller{s, s.key("one", "till", access.Write)}
	ok(writer, "Webhook.CreateEndpoint", endpoint("shop"), new(notifyv1.CreateEndpointResponse))
	first := ok(admin, "Webhook.GetSecret", &notifyv1.GetSecretRequest{Name: "shop"}, new(notifyv1.GetSecretResponse)).GetSecrets()
	moved := ok(writer, "Webhook.RotateSecret", &notifyv1.RotateSecretRequest{Name: "shop", SecretVersion: 1}, new(notifyv1.RotateSecretResponse)).GetEndpoint()
	both := ok(admin, "Webhook.GetSecret", &notifyv1.GetSecretRequest{Name: "shop"}, new(notifyv1.GetSecretResponse)).GetSecrets()
	if len(first) != 1 || len(both) != 2 || both[1].GetSecret() != first[0].GetSecret() || both[0].GetSecret() == first[0].GetSecret() || both[0].GetVersion() != 2 ||
		!strings.HasPrefix(first[0].GetSecret(), "whsec_") || time.Until(moved.GetPreviousUntil().AsTime()) < 23*time.Hour {
		t.Errorf("%v, then %v, %v", first, both, moved)
	}
	if a := writer.call(connectProto, "Webhook.GetSecret", &notifyv1.GetSecretRequest{Name: "shop"}); a.code != "permission_denied" {
		t.Errorf("a key that may write gets the secret: %+v", a)
	}
	if a := admin.call(connectProto, "Webhook.GetSecret", &notifyv1.GetSecretRequest{Name: "shop"}); a.header.Get("Cache-Control") != "no-store" {
		t.Errorf("secrets may be stored on the way: %v", a.header)
	}
}
