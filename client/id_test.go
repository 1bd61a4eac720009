package client_test

import (
	"testing"

	"github.com/ledgerd/ledgerd/client"
	idv1 "github.com/ledgerd/ledgerd/gen/ledgerd/id/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/id/v1/idv1connect"
)

// The server refuses keys on Generate, and a lost answer is harmless: the call has no key and is retried
// anyway.
func TestGenerateIsRetriedWithoutAKey(t *testing.T) {
	t.Parallel()
	url := startLedger(t)
	eachProtocol(t, func(t *testing.T, opts ...client.Option) {
		var seen rpcs
		h := newLosing(2)
		c := newClient(t, url, append(opts, client.WithHTTPClient(h), client.WithRetry(3, 1, 1), seen.option())...)
		ctx, info := client.WithInfo(client.WithKey(t.Context(), "not for ids"))
		res, err := c.IDs.Generate(ctx, &idv1.GenerateRequest{Count: 3})
		if err != nil || len(res.GetIds()) != 3 || info.Attempts != 3 || info.Key != "" {
			t.Fatalf("%v, %v, %+v", res, err, info)
		}
		for _, key := range seen.of(idv1connect.IdServiceGenerateProcedure) {
			if key != "" {
				t.Errorf("sent with the key %q", key)
			}
		}
		if p, err := c.IDs.Parse(t.Context(), &idv1.ParseRequest{Id: res.GetTexts()[2]}); err != nil ||
			p.GetId() != res.GetIds()[2] {
			t.Errorf("%v, %v", p, err)
		}
		if _, err := c.IDs.Parse(t.Context(),
			&idv1.ParseRequest{Id: "order-1"}); client.ReasonOf(err) != client.ReasonIDInvalid {
			t.Error(err)
		}
	})
}
