// Package migrations holds the schema, as goose migrations. The stock goose CLI runs them too.
package migrations

import "embed"

// FS holds every migration.
//
//go:embed *.sql
var FS embed.FS
