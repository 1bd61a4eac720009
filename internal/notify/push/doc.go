// Package push sends push messages to devices: Android and web by Firebase Cloud Messaging (HTTP v1), Apple's by APNs.
// It owns no tables.
//
// What it promises: one call is at most one request, but for what HTTP/2 itself says was not processed. Devices are
// told the message's key, by which an app can tell a repeat. A device that is not registered any more is Permanent and
// Disable. A recipient is a token, with "fcm:" or "apns:" before it where a tenant has devices of both: the other
// sender refuses it, so the next one in the order gets it.
package push

import (
	"encoding/json"
	"strings"

	"github.com/ledgerd/ledgerd/internal/notify/internal/httpsend"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// Prefixes of recipients.
const (
	prefixFCM  = "fcm:"
	prefixAPNs = "apns:"
)

// token is the device's, if the recipient is one for the prefix, or has none.
func token(recipient, prefix, other string) (string, *send.Failure) {
	if strings.HasPrefix(recipient, other) {
		return "", &send.Failure{Outcome: send.Refused, Code: "other_platform",
			Text: "the device token belongs to another provider"}
	}
	return strings.TrimPrefix(recipient, prefix), nil
}

// data are the message's data: an object's members, or all of them under "data".
func data(m *send.Message) map[string]json.RawMessage {
	var members map[string]json.RawMessage
	if len(m.Content.Data) > 0 && json.Unmarshal(m.Content.Data, &members) != nil {
		members = map[string]json.RawMessage{"data": text(string(m.Content.Data))}
		if json.Valid(m.Content.Data) {
			members["data"] = m.Content.Data
		}
	}
	if members == nil {
		members = map[string]json.RawMessage{}
	}
	members["message_key"] = text(m.Key)
	if m.Content.Type != "" {
		members["type"] = text(m.Content.Type)
	}
	return members
}

func text(s string) json.RawMessage {
	b, _ := json.Marshal(s) // text is always encoded
	return b
}

// clean is a provider's words without the device's token.
func clean(m *send.Message, device, words string) string {
	return httpsend.Clean(m, strings.ReplaceAll(words, device, "…"))
}
