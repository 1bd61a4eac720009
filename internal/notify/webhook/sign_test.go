package webhook

import (
	"encoding/base64"
	"net/http"
	"testing"
	"time"
)

// The test vector of the reference libraries:
// https://github.com/standard-webhooks/standard-webhooks/blob/main/libraries/go/webhook_test.go.
func TestSignature(t *testing.T) {
	key, err := base64.StdEncoding.DecodeString("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	h := http.Header{}
	sign(h, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`), key)
	if got := h.Get("webhook-signature"); got != "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" {
		t.Error(got)
	}
	if Secret(key).String() != "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" {
		t.Error(Secret(key).String())
	}
}
