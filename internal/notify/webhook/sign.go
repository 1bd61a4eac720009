package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/secret"
)

// Secret is a signing secret of an endpoint.
type Secret []byte

// String returns the encoding that receivers' libraries accept.
func (s Secret) String() string { return "whsec_" + base64.StdEncoding.EncodeToString(s) }

// SecretOf derives a version of an endpoint's secret. A recreated endpoint has another id, and so another secret.
func SecretOf(m *secret.Master, tenant int32, endpoint int64, version int32) Secret {
	return m.Derive("webhook", strconv.Itoa(int(tenant)), strconv.FormatInt(endpoint, 10), strconv.Itoa(int(version)))
}

// sign sets the three signature headers. The first secret is the newest.
func sign(h http.Header, id string, at time.Time, body []byte, secrets ...Secret) {
	stamp := strconv.FormatInt(at.Unix(), 10)
	var signatures []byte
	for i, s := range secrets {
		mac := hmac.New(sha256.New, s)
		mac.Write([]byte(id + "." + stamp + "."))
		mac.Write(body)
		if i > 0 {
			signatures = append(signatures, ' ')
		}
		signatures = base64.StdEncoding.AppendEncode(append(signatures, "v1,"...), mac.Sum(nil))
	}
	h.Set("Webhook-Id", id)
	h.Set("Webhook-Timestamp", stamp)
	h.Set("Webhook-Signature", string(signatures))
}
