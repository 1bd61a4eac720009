package lock

import (
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/lock/internal/db"
)

type keyRows = commit.Rows[Key, struct{}]

// Keys are the lock keys of one batch: transaction-level advisory locks, acquired before all row locks. They
// have no rows.
type Keys struct {
	keyRows
}

var (
	keyTable = commit.NewKeyOrder[Key, struct{}](compareKeys)

	_ commit.Participant = (*Keys)(nil)
)

func NewKeys() *Keys {
	return &Keys{keyRows: keyTable.Rows()}
}

// Lock acquires the advisory locks in key order.
func (k *Keys) Lock(p *commit.Pipe) {
	keys := k.Sorted()
	arg := db.KeyLockParams{Tenants: make([]int32, len(keys)), Keys: make([]string, len(keys))}
	for i, x := range keys {
		arg.Tenants[i], arg.Keys[i] = x.Key.Tenant, x.Key.Name
	}
	p.Queue(func(d commit.DB) error { return q.KeyLock(p.Context(), d, arg) })
}

// Flush has nothing to write.
func (k *Keys) Flush(*commit.Pipe) {}
