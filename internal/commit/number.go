package commit

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// batchIDs hands out batch numbers from blocks of the sequence, each epoch's above those before: if the database loses
// its last commits (an asynchronous standby is promoted, a backup is restored), their numbers are not given out again.
// Only a loss that Postgres cannot detect, such as the restore of a disk snapshot, makes it give numbers out again.
// Then a batch collides on the primary key, and a new block is fetched.
type batchIDs struct {
	mu            sync.Mutex
	unused, limit int64
	fetched       time.Time
}

const (
	batchBlock = 1000
	blockLife  = time.Hour // a number is used within an hour of being fetched
)

// next returns a number. A hanging fetch blocks only its own writer.
func (b *batchIDs) next(conn *pgx.Conn) (int64, error) {
	if id, ok := b.take(); ok {
		return id, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), roundTripTimeout)
	defer cancel()
	var first int64
	fetched := time.Now()
	err := durably(ctx, conn, func(tx pgx.Tx) (err error) {
		if err = q.EpochBegin(ctx, tx); err == nil { // or the next epoch could have the same number
			first, err = q.BatchBlock(ctx, tx)
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unused == b.limit { // otherwise another writer was faster, and this block is dropped
		b.unused, b.limit, b.fetched = first, first+batchBlock, fetched
	}
	b.unused++
	return b.unused - 1, nil
}

func (b *batchIDs) take() (id int64, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unused == b.limit || time.Since(b.fetched) > blockLife {
		b.unused = b.limit
		return 0, false
	}
	b.unused++
	return b.unused - 1, true
}

// discardBlock drops the rest of the block.
func (b *batchIDs) discardBlock() {
	b.mu.Lock()
	b.unused = b.limit
	b.mu.Unlock()
}
