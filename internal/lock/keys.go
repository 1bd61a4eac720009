package lock

import (
	"hash/maphash"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/lock/internal/db"
)

type keyRows = commit.Rows[Key, struct{}]

// Keys are the lock keys of one batch: advisory locks of its transaction, taken before everything else.
// They have no rows.
type Keys struct {
	keyRows
}

var (
	keySeed = maphash.MakeSeed()

	_ commit.Participant = (*Keys)(nil)
)

// NewKeys makes an empty set.
func NewKeys() *Keys {
	return &Keys{keyRows: commit.NewRows[Key, struct{}](keySeed)}
}

// Lock takes the locks, in the order of their numbers.
func (k *Keys) Lock(p *commit.Pipe) {
	keys := k.Sorted(compareKeys)
	arg := db.KeyLockParams{Tenants: make([]int32, len(keys)), Keys: make([]string, len(keys))}
	for i, x := range keys {
		arg.Tenants[i], arg.Keys[i] = x.Key.Tenant, x.Key.Name
	}
	p.Queue(func(d commit.DB) error { return q.KeyLock(p.Context(), d, arg) })
}

// Flush has nothing to write.
func (k *Keys) Flush(*commit.Pipe) {}
