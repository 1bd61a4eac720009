// Package schema holds the catalog objects that `ledgerd verify` expects in a database: the objects that guard the
// data, and the rights to them.
package schema

import (
	_ "embed" // catalog.sql and expected.txt
	"strings"
)

// Catalog is one query that lists the objects of a database.
//
//go:embed catalog.sql
var Catalog string

//go:embed expected.txt
var expected string

// Object is one row of Catalog. Kind and name identify it.
type Object struct {
	Kind, Name, Definition string
}

func (o Object) String() string { return o.Kind + "\t" + o.Name + "\t" + o.Definition }

// Expected returns the objects that the migrations create, from expected.txt: one a line, sorted, fields separated by
// tabs. `make generate` writes the file.
func Expected() []Object {
	var list []Object
	for line := range strings.Lines(expected) {
		if f := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 3); len(f) == 3 {
			list = append(list, Object{f[0], f[1], f[2]})
		}
	}
	return list
}
