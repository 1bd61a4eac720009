package verify

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/db/schema"
)

const (
	schemaCheck = "schema_matches"
	schemaRule  = "Tables, constraints, triggers, functions, views, rights and roles are those that the migrations " +
		"create, and there are no others."
)

// object is an object that was found.
type object struct {
	schema.Object
	// expected is set for parts of partitions, which must be like those of their parents.
	expected *string
}

// schema compares the catalogs with the expected ones. Partitions come and go while the query runs, so differences count
// if a second comparison finds them too.
func (r *run) schema(ctx context.Context) error {
	start := time.Now()
	differences, err := r.schemaDifferences(ctx)
	if err == nil && len(differences) > 0 {
		var again []Violation
		again, err = r.schemaDifferences(ctx)
		differences = slices.DeleteFunc(again, func(v Violation) bool {
			return !slices.ContainsFunc(differences, func(w Violation) bool { return v.String() == w.String() })
		})
	}
	if err != nil {
		return fmt.Errorf("check %s: %w", schemaCheck, err)
	}
	for _, v := range differences {
		r.found(v)
	}
	r.report.SchemaTook = time.Since(start)
	rows, err := r.conn.Query(ctx, query("owners"))
	if err != nil {
		return err
	}
	r.report.Owners, err = pgx.CollectRows(rows, pgx.RowTo[string])
	return err
}

func (r *run) schemaDifferences(ctx context.Context) (differences []Violation, err error) {
	err = r.snapshot(ctx, func(tx pgx.Tx) error {
		found, err := readSchema(ctx, tx)
		r.report.Objects = len(found)
		differences = compare(schema.Expected(), found)
		return err
	})
	return differences, err
}

// Schema returns the objects of a database, sorted, as expected.txt lists them.
func Schema(ctx context.Context, conn *pgx.Conn) ([]schema.Object, error) {
	var list []schema.Object
	err := (&run{conn: conn}).snapshot(ctx, func(tx pgx.Tx) error {
		found, err := readSchema(ctx, tx)
		for _, o := range found {
			if o.expected == nil {
				list = append(list, o.Object)
			}
		}
		return err
	})
	return list, err
}

// readSchema reads the objects. The session's search_path decides only which table is the ledger's.
func readSchema(ctx context.Context, tx pgx.Tx) ([]object, error) {
	var ledger *uint32
	err := tx.QueryRow(ctx, "select pg_catalog.to_regclass('ledger_accounts')::pg_catalog.oid").Scan(&ledger)
	if err != nil {
		return nil, err
	}
	if ledger == nil {
		return nil, fmt.Errorf("there is no table ledger_accounts in search_path")
	}
	if _, err = tx.Exec(ctx, "set local search_path = pg_catalog, pg_temp"); err != nil {
		return nil, err
	}
	if _, err = tx.Exec(ctx, query("schema_path"), *ledger); err != nil {
		return nil, err
	}
	if _, err = tx.Exec(ctx, query("schema_settings")); err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, schema.Catalog)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (o object, err error) {
		return o, row.Scan(&o.Kind, &o.Name, &o.Definition, &o.expected)
	})
}

// compare returns a violation for each object that differs, is missing, or is there in addition.
func compare(expected []schema.Object, found []object) (differences []Violation) {
	type key struct{ kind, name string }
	want := map[key]string{}
	for _, o := range expected {
		want[key{o.Kind, o.Name}] = o.Definition
	}
	differ := func(k key, found, expected string) {
		differences = append(differences, Violation{Check: schemaCheck, Rule: schemaRule, Fields: []Field{
			{Name: "kind", Value: k.kind}, {Name: "object", Value: k.name},
			{Name: "definition", Value: found, Wrong: true, Expected: expected}}})
	}
	for _, o := range found {
		k := key{o.Kind, o.Name}
		definition, ok := want[k]
		switch {
		case o.expected != nil:
			differ(k, o.Definition, *o.expected)
		case !ok:
			differ(k, o.Definition, null)
		case o.Definition != definition:
			differ(k, o.Definition, definition)
		}
		if o.expected == nil {
			delete(want, k) // a second one with this name is one too many
		}
	}
	for _, o := range expected {
		if k := (key{o.Kind, o.Name}); want[k] != "" {
			differ(k, null, want[k])
		}
	}
	return differences
}
