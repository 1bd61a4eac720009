package verify

import (
	"context"
	"io/fs"

	"github.com/jackc/pgx/v5"
)

// Settings are those of a slice's transaction.
var Settings = query("settings")

// Sliced gives the statement of every check that is run in slices, by name, and the column that they go by.
func Sliced(ctx context.Context, conn *pgx.Conn, files fs.FS) (sql, columns map[string]string, err error) {
	list, err := load(ctx, conn, files)
	sql, columns = map[string]string{}, map[string]string{}
	for _, c := range list {
		if c.column != "" {
			sql[c.name], columns[c.name] = c.sliced(), c.column
		}
	}
	return sql, columns, err
}
