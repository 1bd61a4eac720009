package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
	// expected is set for a part of a partition that differs from its parent, to the parent's definition.
	expected *string
}

// schema compares the catalogs with the expected ones.
func (r *run) schema(ctx context.Context) error {
	start := time.Now()
	found, err := readSchema(ctx, r.conn)
	if err != nil {
		return fmt.Errorf("check %s: %w", schemaCheck, err)
	}
	for _, v := range compare(schema.Expected(), found) {
		r.found(v)
	}
	r.report.Objects, r.report.SchemaTook = len(found), time.Since(start)
	rows, err := r.conn.Query(ctx, query("owners"))
	if err != nil {
		return err
	}
	r.report.Owners, err = pgx.CollectRows(rows, pgx.RowTo[string])
	return err
}

// Schema returns the objects of a database, sorted, as expected.txt lists them.
func Schema(ctx context.Context, conn *pgx.Conn) (list []schema.Object, err error) {
	found, err := readSchema(ctx, conn)
	for _, o := range found {
		list = append(list, o.Object)
	}
	return list, err
}

// readSchema reads the objects. It uses the session's search_path only to find the schema of the ledger. It locks the
// partitions against dropping: Postgres' functions for definitions fail on dropped objects that the query still sees.
func readSchema(ctx context.Context, conn *pgx.Conn) (found []object, err error) {
	options := pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, conn, options, func(tx pgx.Tx) error {
		if err := prepare(ctx, tx); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, schema.Catalog)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (o object, err error) {
			return o, row.Scan(&o.Kind, &o.Name, &o.Definition, &o.expected)
		})
		return err
	})
	return found, err
}

// prepare makes the settings of the transaction and locks the partitions.
func prepare(ctx context.Context, tx pgx.Tx) error {
	var ledger *uint32
	err := tx.QueryRow(ctx, "select pg_catalog.to_regclass('ledger_accounts')::pg_catalog.oid").Scan(&ledger)
	if err != nil {
		return err
	}
	if ledger == nil {
		return errors.New("there is no table ledger_accounts in search_path")
	}
	if _, err = tx.Exec(ctx, "set local search_path = pg_catalog, pg_temp"); err != nil {
		return err
	}
	var lock *string
	if err = tx.QueryRow(ctx, query("partitioned"), *ledger).Scan(&lock); err != nil {
		return err
	}
	if lock != nil {
		if _, err = tx.Exec(ctx, *lock); err != nil {
			return err
		}
	}
	_, err = tx.Exec(ctx, query("schema_settings"), *ledger)
	return err
}

// compare returns a violation for each object that differs, is missing, or is not expected.
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
			delete(want, k) // a second object of this name is not expected
		}
	}
	for _, o := range expected {
		k := key{o.Kind, o.Name}
		if definition, missing := want[k]; missing {
			differ(k, null, definition)
		}
	}
	return withoutParts(differences)
}

// withoutParts leaves out the columns, constraints and indexes of relations that are missing or were added.
func withoutParts(differences []Violation) []Violation {
	relations := map[string]bool{}
	for _, v := range differences {
		switch d := v.Fields[2]; v.Fields[0].Value {
		case "table", "view", "sequence", "materialized view", "foreign table", "type":
			relations[v.Fields[1].Value] = d.Value == null || d.Expected == null
		}
	}
	return slices.DeleteFunc(differences, func(v Violation) bool {
		name := v.Fields[1].Value
		switch v.Fields[0].Value {
		case "column":
			name = name[:strings.LastIndexByte(name, '.')]
		case "constraint", "index":
			_, name, _ = strings.Cut(name, " on ")
		case "query", "range", "partition key":
		default:
			return false
		}
		return relations[name]
	})
}
