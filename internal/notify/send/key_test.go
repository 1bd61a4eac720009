package send_test

import (
	"math"
	"testing"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

func TestAKeyTellsItsMessage(t *testing.T) {
	for _, c := range []struct {
		tenant int32
		id     int64
	}{{1, 16384}, {math.MaxInt32, math.MaxInt64}, {0, 0}} {
		key := send.KeyOf(c.tenant, c.id)
		tenant, id, ok := send.ParseKey(key)
		if !ok || tenant != c.tenant || id != c.id || len(key) > 64 {
			t.Errorf("%s tells %d, %d, %v; it is of %d, %d", key, tenant, id, ok, c.tenant, c.id)
		}
	}
}

func TestWhatIsNoKeyIsRefused(t *testing.T) {
	for _, key := range []string{"", "msg_", "msg_1", "msg_1_", "msg__1", "msg_01_1", "msg_1_1_1", "msg_A_1", "msg_+1_1", "1_1",
		"msg_zzzzzzzzzzzz_1", "msg_1_zzzzzzzzzzzzzzz"} {
		if _, _, ok := send.ParseKey(key); ok {
			t.Errorf("%q was taken for a key", key)
		}
	}
}
