package send

import (
	"encoding/json"
	"strconv"

	"github.com/ledgerd/ledgerd/internal/notify/secret"
)

// SealContent encrypts the content of a verification code, so that access to the database alone does not reveal a code
// that is still valid. Each message has its own key.
func SealContent(m *secret.Master, tenant int32, id int64, text []byte) []byte {
	return m.Seal(text, "notify.contents", strconv.Itoa(int(tenant)), strconv.FormatInt(id, 10))
}

// ReadContent decodes stored content, sealed or not.
func ReadContent(m *secret.Master, tenant int32, id int64, kept []byte) (c Content, err error) {
	text, err := m.Open(kept, "notify.contents", strconv.Itoa(int(tenant)), strconv.FormatInt(id, 10))
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	return c, err
}
