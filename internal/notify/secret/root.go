package secret

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/notify/secret/internal/db"
)

var q db.Queries

// Root returns the root secret of a database, opened with one of the master keys. The first call creates it. The error
// names the id of a key that is missing. A nil *Master has a nil root secret.
func (m *Master) Root(ctx context.Context, pool *pgxpool.Pool) (*Master, error) {
	if m == nil {
		return nil, nil
	}
	row, err := q.RootGet(ctx, pool)
	if errors.Is(err, pgx.ErrNoRows) {
		err = q.RootInsert(ctx, pool, db.RootInsertParams{KeyID: idOf(m.key()), Sealed: m.sealRoot(New())})
		if p, ok := errors.AsType[*pgconn.PgError](err); ok && p.Code == "25006" { // read_only_sql_transaction
			return nil, fmt.Errorf("the database is read-only and has no root secret yet: "+
				"the first server has to start on the primary: %w", err)
		}
		if err == nil { // of concurrent inserts the first won
			row, err = q.RootGet(ctx, pool)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read the root secret: %w", err)
	}
	return m.openRoot(row.KeyID, row.Sealed)
}

// Sealing names the master key that seals the root secret of a database. KeyID is empty if there is no root secret yet.
type Sealing struct {
	KeyID  string
	Newest bool // the key is the newest: the others can be removed
}

// Check returns which master key seals the root secret. The error names the id of a key that is missing.
func Check(ctx context.Context, pool *pgxpool.Pool, m *Master) (Sealing, error) {
	row, err := q.RootGet(ctx, pool)
	if errors.Is(err, pgx.ErrNoRows) {
		return Sealing{Newest: true}, nil
	}
	if err != nil {
		return Sealing{}, fmt.Errorf("read the root secret: %w", err)
	}
	_, err = m.openRoot(row.KeyID, row.Sealed)
	return Sealing{row.KeyID, row.KeyID == idOf(m.key())}, err
}

// Reseal seals the root secret with the newest master key, unless that key seals it already. Servers are not affected:
// they have opened the root secret, which stays the same. Needs the rights of the owner.
func Reseal(ctx context.Context, pool *pgxpool.Pool, m *Master) (Sealing, error) {
	for {
		row, err := q.RootGet(ctx, pool)
		if err != nil {
			return Sealing{}, fmt.Errorf("read the root secret: %w", err)
		}
		root, err := m.openRoot(row.KeyID, row.Sealed)
		if err != nil {
			return Sealing{}, err
		}
		newest := idOf(m.key())
		if row.KeyID == newest {
			return Sealing{newest, true}, nil
		}
		if _, err := q.RootReseal(ctx, pool, db.RootResealParams{KeyID: newest, Sealed: m.sealRoot(root),
			OldKeyID: row.KeyID}); err != nil {
			return Sealing{}, fmt.Errorf("seal the root secret: %w", err)
		}
	}
}

// sealRoot seals a root secret with the newest key.
func (m *Master) sealRoot(root *Master) []byte {
	return m.box("secret.root", nil).Seal(nil, nil, root.key(), nil)
}

func (m *Master) openRoot(id string, sealed []byte) (*Master, error) {
	for _, k := range m.keys() {
		if idOf(k) != id {
			continue
		}
		root, err := of(k).box("secret.root", nil).Open(nil, nil, sealed, nil)
		if err != nil || len(root) != Size {
			return nil, fmt.Errorf("the root secret cannot be opened with the master key %s: secret_roots was changed",
				id)
		}
		return of(root), nil
	}
	return nil, fmt.Errorf("the database needs the master key %s, and the server has only %s: "+
		"add the key to the secrets file",
		id, strings.Join(m.IDs(), ", "))
}
