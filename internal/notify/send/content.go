package send

import (
	"encoding/json"
	"strconv"

	"github.com/ledgerd/ledgerd/internal/notify/secret"
)

// SealContent hides a content, written as JSON, from who has the database alone: that of a code, which is worth
// something as long as it is not used. Each message has a key of its own.
func SealContent(m *secret.Master, tenant int32, id int64, text []byte) []byte {
	return m.Seal(text, "notify.contents", strconv.Itoa(int(tenant)), strconv.FormatInt(id, 10))
}

// ReadContent reads a content as it is kept, sealed or not.
func ReadContent(m *secret.Master, tenant int32, id int64, kept []byte) (c Content, err error) {
	text, err := m.Open(kept, "notify.contents", strconv.Itoa(int(tenant)), strconv.FormatInt(id, 10))
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	return c, err
}
