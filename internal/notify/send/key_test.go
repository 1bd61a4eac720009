package send_test

import (
	"bytes"
	"math"
	"testing"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

var (
	here  = send.NewKeys(bytes.Repeat([]byte{1}, 32))
	there = send.NewKeys(bytes.Repeat([]byte{2}, 32))
)

func TestParseReturnsTheMessageOfAKey(t *testing.T) {
	for _, keys := range []send.Keys{"", here} {
		for _, c := range []struct {
			tenant int32
			id     int64
		}{{1, 16384}, {math.MaxInt32, math.MaxInt64}, {0, 0}} {
			key := keys.Of(c.tenant, c.id)
			tenant, id, ok := keys.Parse(key)
			if !ok || tenant != c.tenant || id != c.id || len(key) > 64 {
				t.Errorf("%s: parsed as %d, %d, %v, want %d, %d", key, tenant, id, ok, c.tenant, c.id)
			}
		}
	}
}

func TestKeysOfTwoDatabasesAreNeverEqual(t *testing.T) {
	for _, key := range []string{there.Of(1, 16384), send.Keys("").Of(1, 16384)} {
		if key == here.Of(1, 16384) {
			t.Errorf("two databases have the key %s", key)
		}
		if _, _, ok := here.Parse(key); ok {
			t.Errorf("%s: key of another database accepted", key)
		}
	}
}

func TestParseRefusesOtherTexts(t *testing.T) {
	for _, key := range []string{"", "msg_", "msg_1", "msg_1_", "msg__1", "msg_01_1", "msg_1_1_1", "msg_A_1",
		"msg_+1_1", "1_1",
		"msg_zzzzzzzzzzzz_1", "msg_1_zzzzzzzzzzzzzzz"} {
		if _, _, ok := send.Keys("").Parse(key); ok {
			t.Errorf("%q: accepted as a key", key)
		}
	}
}
