package bench

import (
	"context"
	"fmt"
	"path"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/localpg"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// keyBench is what the cases of RunKeys run on: one Postgres for the engine in this process and for a server of its
// own, and a Redis if there is one.
type keyBench struct {
	cluster      *cluster
	super        *pgx.Conn
	pool         *pgxpool.Pool
	engine       *flow.Engine
	tenant       int32
	server       *service
	client       *client.Client
	redis        *redisServer
	redisVersion string
}

// enginePool is as many connections as a server has for its batches.
const enginePool = 8

func openKeyBench(ctx context.Context, o *KeyOptions) (b *keyBench, err error) {
	b = &keyBench{}
	if b.cluster, err = startCluster(ctx, &o.Options); err != nil {
		return nil, err
	}
	if err = b.open(ctx, o); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *keyBench) open(ctx context.Context, o *KeyOptions) (err error) {
	const database = "bench_keys"
	if err := b.cluster.exec(ctx, "postgres", "create database "+database); err != nil {
		return err
	}
	if err := pg.Migrate(ctx, b.cluster.postgres.DSN(localpg.Superuser, database)); err != nil {
		return err
	}
	if b.super, err = b.cluster.connect(ctx, database); err != nil {
		return err
	}
	if _, err := b.super.Exec(ctx, "grant ledgerd_app to "+loginRole); err != nil {
		return err
	}
	url := b.cluster.postgres.DSN(loginRole, database)
	if b.pool, err = pg.Open(ctx, url, enginePool); err != nil {
		return err
	}
	if b.tenant, err = access.EnsureTenant(ctx, b.pool, tenantName); err != nil {
		return err
	}
	apiKey, err := access.Create(ctx, b.pool, b.tenant, tenantName, access.Write)
	if err != nil {
		return err
	}
	b.engine = flow.NewEngine(b.pool, tenantName, nil, nil)
	if b.server, err = startService(ctx, o.Program, url, false); err != nil {
		return err
	}
	b.client = client.New(b.server.url, client.WithAPIKey(apiKey))
	program := findRedis(o.Redis)
	if program == "" {
		if o.Redis != "" {
			return fmt.Errorf("there is no %s", o.Redis)
		}
		b.cluster.progress("redis-server is not here: nothing is compared with it")
		return nil
	}
	b.redis, b.redisVersion, err = startRedis(ctx, program, b.cluster.dir, o.Callers)
	return err
}

func (b *keyBench) close() {
	if b.redis != nil {
		b.redis.close()
	}
	if b.client != nil {
		b.client.Close()
	}
	if b.server != nil {
		b.server.stop(stopPatience)
	}
	if b.engine != nil {
		ctx, cancel := context.WithTimeout(context.Background(), stopPatience)
		defer cancel()
		if err := b.engine.Drain(ctx); err != nil {
			b.cluster.progress("drain: %v", err)
		}
	}
	if b.pool != nil {
		b.pool.Close()
	}
	if b.super != nil {
		_ = b.super.Close(context.Background())
	}
	b.cluster.stop()
}

// selectedKeys are the cases that a pattern fits; without patterns all.
func selectedKeys(all []KeyCase, patterns []string) []KeyCase {
	var some []KeyCase
	for _, c := range all {
		if fits(c.Name, patterns) {
			some = append(some, c)
		}
	}
	return some
}

// fits tells whether one of the patterns fits a name, or there are none.
func fits(name string, patterns []string) bool {
	for _, pattern := range patterns {
		if ok, _ := path.Match(pattern, name); ok {
			return true
		}
	}
	return len(patterns) == 0
}
