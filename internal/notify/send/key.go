package send

import (
	"encoding/base32"
	"strconv"
	"strings"
)

// Keys makes the keys of messages. Its text is the origin: what tells the messages of one database from those of
// another that uses the same account at a provider, since the numbers of both begin at the same place, and a provider
// that honours keys would take the one for a repeat of the other. Empty: there is only one.
type Keys string

// NewKeys makes an origin of a secret, such as one derived of the master key, which it does not give away.
func NewKeys(secret []byte) Keys {
	return Keys(strings.ToLower(base32.StdEncoding.EncodeToString(secret[:5])))
}

// Of is the Key of a message: what providers get in every attempt, and what their reports bring back.
func (k Keys) Of(tenant int32, message int64) string {
	return k.prefix() + strconv.FormatInt(int64(tenant), 36) + "_" + strconv.FormatInt(message, 36)
}

// Parse tells the message that a key stands for. Any other text is none of ours. A key is no secret.
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
