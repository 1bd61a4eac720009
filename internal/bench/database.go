package bench

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/localpg"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// database is a migrated database of a cluster with one tenant, and with a server once serve was called.
type database struct {
	*cluster
	name   string
	url    string        // as the server's role
	conn   *pgx.Conn     // superuser
	pool   *pgxpool.Pool // as the server's role
	tenant int32
	apiKey string
	server *service
}

const tenantName = "bench"

// create creates a database with a pool of the given size.
func (c *cluster) create(ctx context.Context, name string, connections int32) (*database, error) {
	d := &database{cluster: c, name: "bench_" + name}
	if err := d.prepare(ctx, connections); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

func (d *database) prepare(ctx context.Context, connections int32) (err error) {
	if err := d.exec(ctx, "postgres", "create database "+d.name); err != nil {
		return err
	}
	if err := pg.Migrate(ctx, d.superDSN()); err != nil {
		return err
	}
	if d.conn, err = d.connect(ctx, d.name); err != nil {
		return err
	}
	if _, err := d.conn.Exec(ctx, "grant ledgerd_app to "+loginRole); err != nil {
		return err
	}
	d.url = d.postgres.DSN(loginRole, d.name)
	if d.pool, err = pg.Open(ctx, d.url, connections); err != nil {
		return err
	}
	d.tenant, d.apiKey, err = d.newTenant(ctx, tenantName)
	return err
}

func (d *database) superDSN() string { return d.postgres.DSN(localpg.Superuser, d.name) }

// newTenant creates a tenant with an API key.
func (d *database) newTenant(ctx context.Context, name string) (tenant int32, apiKey string, err error) {
	pool, err := pg.Open(ctx, d.superDSN(), 1)
	if err != nil {
		return 0, "", err
	}
	defer pool.Close()
	if tenant, err = access.EnsureTenant(ctx, pool, name); err != nil {
		return 0, "", err
	}
	key, err := access.Administer(pool).CreateKey(ctx, tenant,
		access.NewKey{Principal: name, Rights: access.Rights{Role: access.Admin}})
	return tenant, key.Secret, err
}

// serve starts a server on the database, also with its metrics and profiles if wanted.
func (d *database) serve(ctx context.Context, metrics bool) (err error) {
	d.server, err = startService(ctx, d.options.Program, d.url, metrics)
	return err
}

func (d *database) close() {
	if d.server != nil {
		d.server.stop(stopPatience)
	}
	if d.pool != nil {
		d.pool.Close()
	}
	if d.conn != nil {
		_ = d.conn.Close(context.Background())
	}
}
