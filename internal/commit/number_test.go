package commit

import (
	"testing"
	"time"
)

// Convention 10 of docs/engine.md: a batch number is used within an hour of being fetched.
func TestOldBatchNumbersAreNotUsed(t *testing.T) {
	t.Parallel()
	b := batchIDs{unused: 5, limit: 10, fetched: time.Now().Add(-blockLife + time.Minute)}
	if id, ok := b.take(); id != 5 || !ok {
		t.Errorf("a number fetched 59 minutes ago: %d, %v", id, ok)
	}
	b.fetched = time.Now().Add(-blockLife - time.Second)
	for range 2 {
		if id, ok := b.take(); ok {
			t.Errorf("number %d, fetched more than an hour ago, is used", id)
		}
	}
}
