package send

import (
	"encoding/base32"
	"strconv"
	"strings"
)

// Keys makes idempotency keys for providers. The string identifies the database: message ids of two databases overlap,
// and a provider account shared by both would deduplicate their messages. Empty: the account is not shared.
type Keys string

// NewKeys derives the identifier from a secret without revealing it.
func NewKeys(secret []byte) Keys {
	return Keys(strings.ToLower(base32.StdEncoding.EncodeToString(secret[:5])))
}

// Of returns the key of a message. Every attempt sends it to the provider, and the reports of some providers return it.
func (k Keys) Of(tenant int32, message int64) string {
	return k.prefix() + strconv.FormatInt(int64(tenant), 36) + "_" + strconv.FormatInt(message, 36)
}

// Parse returns the message of a key, or ok = false for any other text. Keys are not secret.
func (k Keys) Parse(key string) (tenant int32, message int64, ok bool) {
	rest, found := strings.CutPrefix(key, k.prefix())
	first, second, two := strings.Cut(rest, "_")
	t, err := strconv.ParseInt(first, 36, 32)
	id, err2 := strconv.ParseInt(second, 36, 64)
	if !found || !two || err != nil || err2 != nil || k.Of(int32(t), id) != key {
		return 0, 0, false
	}
	return int32(t), id, true
}

func (k Keys) prefix() string {
	if k == "" {
		return "msg_"
	}
	return "msg_" + string(k) + "_"
}
