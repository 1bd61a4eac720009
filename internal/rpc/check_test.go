package rpc

import (
	"testing"

	"google.golang.org/protobuf/proto"

	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// Callers write names of enums: numbers such as protovalidate's "must not be in list [0]" tell them nothing.
func TestABadEnumIsToldTheNamesThatAreAllowed(t *testing.T) {
	t.Parallel()
	const all = "must be one of CHANNEL_SMS, CHANNEL_EMAIL, CHANNEL_PUSH, CHANNEL_WEBHOOK"
	for _, c := range []struct {
		request proto.Message
		want    string
	}{
		{&notifyv1.SendRequest{}, all},
		{&notifyv1.ListMessagesRequest{Channel: 99}, all},
		{&notifyv1.SendCodeRequest{Channel: notifyv1.Channel_CHANNEL_PUSH},
			"must be one of CHANNEL_SMS, CHANNEL_EMAIL"},
	} {
		var said string
		for _, f := range fault.Of(check(c.request)).Fields {
			if f.Path == "channel" {
				said = f.Description
			}
		}
		if said != c.want {
			t.Errorf("%T: %q, not %q", c.request, said, c.want)
		}
	}
}
