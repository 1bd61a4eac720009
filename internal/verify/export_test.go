package verify

import (
	"context"
	"io/fs"

	"github.com/jackc/pgx/v5"
)

// Settings are the settings of a slice's transaction.
var Settings = query("settings")

// CompareSchema returns the differences of the schema alone.
func CompareSchema(ctx context.Context, conn *pgx.Conn) (Report, error) {
	r := &run{conn: conn}
	err := r.schema(ctx)
	return r.report, err
}

// Sliced returns the statement and the column of every check that runs in slices, by name.
func Sliced(ctx context.Context, conn *pgx.Conn, files fs.FS) (sql, columns map[string]string, err error) {
	list, err := loadSliced(ctx, conn, files)
	sql, columns = map[string]string{}, map[string]string{}
	for _, c := range list {
		if c.column != "" {
			sql[c.name], columns[c.name] = c.sliced(), c.column
		}
	}
	return sql, columns, err
}
