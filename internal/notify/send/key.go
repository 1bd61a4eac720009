package send

import (
	"strconv"
	"strings"
)

// KeyOf is the Key of a message: what providers get in every attempt, and what their reports bring back.
func KeyOf(tenant int32, message int64) string {
	return "msg_" + strconv.FormatInt(int64(tenant), 36) + "_" + strconv.FormatInt(message, 36)
}

// ParseKey tells the message that a key stands for. Any other text is none of ours. A key is no secret.
func ParseKey(key string) (tenant int32, message int64, ok bool) {
	rest, found := strings.CutPrefix(key, "msg_")
	first, second, two := strings.Cut(rest, "_")
	t, err := strconv.ParseInt(first, 36, 32)
	id, err2 := strconv.ParseInt(second, 36, 64)
	if !found || !two || err != nil || err2 != nil || KeyOf(int32(t), id) != key {
		return 0, 0, false
	}
	return int32(t), id, true
}
