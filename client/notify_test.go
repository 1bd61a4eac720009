package client_test

import (
	"errors"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/client"
	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
)

// A call over a limit must fail immediately: the user did not ask for a later message.
func TestARequestForACodeTooSoonFailsImmediately(t *testing.T) {
	t.Parallel()
	c := client.New(startLedger(t))
	defer c.Close()
	r := &notifyv1.SendCodeRequest{Channel: notifyv1.Channel_CHANNEL_SMS, Recipient: "+8613812345678", Type: "login"}
	if _, err := c.Notify.SendCode(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	_, err := c.Notify.SendCode(t.Context(), r)
	if e, ok := client.AsError(err); !ok || !errors.Is(err, client.ReasonCodeTooSoon) ||
		e.RetryAfter < 30*time.Second || !e.ShowToUser {
		t.Errorf("%+v", err)
	}
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("took %v", took)
	}
}
