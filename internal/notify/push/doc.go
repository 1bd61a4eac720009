// Package push sends push messages to devices: to Android and web through Firebase Cloud Messaging (HTTP v1), to Apple
// devices through APNs. It owns no tables.
//
// Promises: one call makes at most one request, except when HTTP/2 itself reports that a request was not processed.
// Devices receive the message's key, so that an app can recognise a repeat. An unregistered device is Permanent with
// Disable. A recipient is a device token, prefixed with "fcm:" or "apns:" if a tenant has devices of both: the other
// sender refuses it, and the next provider is asked.
package push

import (
	"encoding/json"
	"strings"

	"github.com/ledgerd/ledgerd/internal/httpsend"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// Prefixes of recipients.
const (
	prefixFCM  = "fcm:"
	prefixAPNs = "apns:"
)

// token returns the device token, or refuses a recipient of the other provider.
func token(recipient, prefix, other string) (string, *send.Failure) {
	if strings.HasPrefix(recipient, other) {
		return "", &send.Failure{Outcome: send.Refused, Code: "other_platform",
			Text: "the device token belongs to another provider"}
	}
	return strings.TrimPrefix(recipient, prefix), nil
}

// data returns the message's data: the members of a JSON object, or any other value as member "data".
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
	b, _ := json.Marshal(s) // strings never fail
	return b
}

// clean redacts a provider's error text, including the device token.
func clean(m *send.Message, device, words string) string {
	return httpsend.Clean(m, strings.ReplaceAll(words, device, "…"))
}
