package rpc

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	inboxv1 "github.com/ledgerd/ledgerd/gen/ledgerd/inbox/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/inbox"
)

// In each form of a body, all its operations and lock keys run, after the receipt of the message.
func TestMessageRunsAllOperationsOfItsBody(t *testing.T) {
	transfer := `{"@type": "type.googleapis.com/ledgerd.ledger.v1.TransferRequest", "bizNo": "p"}`
	for name, x := range map[string]struct {
		request, body string
		locks         []string
	}{
		"an Execute": {"", `{"operations": [{"name": "pay", "request": ` + transfer +
			`}], "lockKeys": ["settlement", "b"]}`, []string{"settlement", "b"}},
		"a request": {"", transfer, nil},
		"of a kind": {"ledgerd.ledger.v1.TransferRequest", `{"bizNo": "p"}`, nil},
	} {
		in := &Incoming{Request: x.request, Key: inbox.Key{Group: "g", ID: "m"},
			Delivery: inbox.Delivery{Content: []byte(x.body), ContentLife: time.Hour}}
		r, _, err := in.execute()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !slices.Equal(r.GetLockKeys(), x.locks) || len(r.GetOperations()) != 2 {
			t.Errorf("%s: %v", name, r)
			continue
		}
		for i, want := range []proto.Message{&inboxv1.ReceiveRequest{Key: in.key(), Delivery: in.delivery()},
			&ledgerv1.TransferRequest{BizNo: "p"}} {
			if got, err := r.GetOperations()[i].GetRequest().UnmarshalNew(); err != nil || !proto.Equal(got, want) {
				t.Errorf("%s: operation %d is %v, %v", name, i, got, err)
			}
		}
	}
}
