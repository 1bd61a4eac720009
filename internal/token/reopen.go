package token

import (
	"crypto/sha256"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
)

// Row is a token in a batch.
type Row = commit.Row[key, row]

// Hash identifies a token without revealing it.
func Hash(token string) []byte {
	h := hashOf(token)
	return h[:]
}

// WantHash declares a token by its hash.
func (tx *Tx) WantHash(tenant int32, hash []byte) *Row {
	return tx.Want(key{tenant, [sha256.Size]byte(hash)})
}

// Reopen opens a spent token again, with a new life, because the submission that spent it failed in another system,
// such as a declined payment. It returns false if the token is not spent, or its record has expired. No command of the
// same batch can spend the reopened token.
func (tx *Tx) Reopen(r *Row) bool {
	if !r.Exists || r.Value.state != spent || !tx.Now.Before(r.Value.forgetAt) {
		return false
	}
	v := tx.Change(r)
	v.state, v.reopened = open, true
	v.expiresAt = tx.Now.Add(v.life)
	v.forgetAt = v.expiresAt.Add(openKept)
	v.spentAt, v.spentBy, v.requestID, v.operation, v.result = time.Time{}, "", "", "", nil
	return true
}
