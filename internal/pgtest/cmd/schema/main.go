// Command schema writes db/schema/expected.txt: the objects of a freshly migrated database, on a server of its own.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/localpg"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/verify"
)

func main() {
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "schema:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, file string) (err error) {
	srv, err := pgtest.StartServer(ctx, localpg.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pgtest.StopServer(srv)) }()
	dsn := srv.DSN(localpg.Superuser, "postgres")
	if err = pg.Migrate(ctx, dsn); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	objects, err := verify.Schema(ctx, conn)
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, o := range objects {
		fmt.Fprintln(&text, o)
	}
	return os.WriteFile(file, []byte(text.String()), 0o644)
}
