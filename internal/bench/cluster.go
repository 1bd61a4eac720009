package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/localpg"
)

// cluster is the Postgres of a whole run, with production durability.
type cluster struct {
	options  *Options
	dir      string
	postgres *localpg.Server
}

// loginRole is the server's role, with the rights that the documentation recommends.
const loginRole = "ledgerd_bench"

// start starts a cluster for a benchmark, and begins its report.
func start(ctx context.Context, o *Options, d Document) (*cluster, *Report, error) {
	r := &Report{Document: d, StartedAt: time.Now()}
	if err := o.defaults(); err != nil {
		return nil, nil, err
	}
	c, err := startCluster(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	r.Rounds, r.Warmup, r.Measure = o.Rounds, o.Warmup, o.Measure
	if r.Machine, err = c.machine(ctx); err != nil {
		c.stop()
		return nil, nil, err
	}
	return c, r, nil
}

func startCluster(ctx context.Context, o *Options) (*cluster, error) {
	dir, err := makeDir(o.Dir)
	if err != nil {
		return nil, err
	}
	c := &cluster{options: o, dir: dir}
	c.progress("starting Postgres in %s", dir)
	settings := map[string]string{
		"shared_buffers":     fmt.Sprintf("%dMB", sharedBuffers()>>20),
		"min_wal_size":       fmt.Sprintf("%dMB", max(80, 16*o.wal)),
		"max_wal_size":       "8GB",
		"max_connections":    "200",
		"checkpoint_timeout": "15min",
	}
	c.postgres, err = localpg.Start(ctx, localpg.Options{Dir: dir, Durable: true, Settings: settings})
	if err != nil {
		_ = os.RemoveAll(dir) // the other error says more
		return nil, err
	}
	setUp := []string{"create role " + loginRole + " login", fmt.Sprintf(sql("wal"), o.wal), "checkpoint"}
	for _, statement := range setUp {
		if err := c.exec(ctx, "postgres", statement); err != nil {
			c.stop()
			return nil, err
		}
	}
	return c, nil
}

// sharedBuffers is 2 GiB, or an eighth of the memory on small machines.
func sharedBuffers() int64 {
	if memory := memoryOfMachine(); memory > 0 {
		return max(min(2<<30, memory/8), 128<<20)
	}
	return 512 << 20
}

const dirPrefix = "ledgerd-bench-"

// makeDir makes a directory on a real disk, and removes the directories of killed runs.
func makeDir(parent string) (string, error) {
	candidates := []string{os.TempDir(), "/var/tmp"}
	if parent != "" {
		candidates = []string{parent}
	}
	i := slices.IndexFunc(candidates, func(dir string) bool { return !isMemory(dir) })
	if i < 0 {
		return "", fmt.Errorf("%v is in memory, where nothing is durable: name a directory on a disk with --dir",
			candidates)
	}
	localpg.RemoveAbandoned(filepath.Join(candidates[i], dirPrefix+"*"), time.Minute) // gigabytes each
	dir, err := os.MkdirTemp(candidates[i], dirPrefix)
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755) // Postgres under root runs as another user
}

// stop stops Postgres and removes its data.
func (c *cluster) stop() {
	if err := c.postgres.Stop(); err != nil {
		c.progress("stop Postgres: %v", err)
	}
	if err := os.RemoveAll(c.dir); err != nil {
		c.progress("remove %s: %v", c.dir, err)
	}
}

func (c *cluster) progress(format string, args ...any) {
	fmt.Fprintf(c.options.Progress, "%s  %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}

func (c *cluster) connect(ctx context.Context, database string) (*pgx.Conn, error) {
	return pgx.Connect(ctx, c.postgres.DSN(localpg.Superuser, database))
}

func (c *cluster) exec(ctx context.Context, database, statement string) error {
	conn, err := c.connect(ctx, database)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, statement)
	return err
}

// Machine describes the test machine.
type Machine struct {
	Cores    int
	Model    string
	Memory   int64 // bytes
	System   string
	Go       string
	Commit   string `json:",omitempty"` // of ledgerd
	Postgres string
	Settings map[string]string
	// Sync is the time of a lone write of 8 KiB with fdatasync.
	Sync, SyncP99 time.Duration
}

func (c *cluster) machine(ctx context.Context) (Machine, error) {
	m := Machine{Cores: runtime.NumCPU(), Model: processorModel(), Memory: memoryOfMachine(), System: kernel(),
		Go: runtime.Version(), Postgres: c.postgres.Version, Settings: map[string]string{}}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				m.Commit = s.Value + m.Commit
			}
			if s.Key == "vcs.modified" && s.Value == "true" {
				m.Commit += " with changes"
			}
		}
	}
	conn, err := c.connect(ctx, "postgres")
	if err != nil {
		return m, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, err := conn.Query(ctx, sql("settings"))
	if err != nil {
		return m, err
	}
	var name, value string
	_, err = pgx.ForEachRow(rows, []any{&name, &value}, func() error { m.Settings[name] = value; return nil })
	if err != nil {
		return m, err
	}
	m.Sync, m.SyncP99, err = syncSpeed(c.dir)
	return m, err
}

// syncSpeed writes like a commit does: it overwrites a block, then syncs.
func syncSpeed(dir string) (median, p99 time.Duration, err error) {
	const times, blocks = 400, 32
	f, err := os.Create(filepath.Join(dir, "sync"))
	if err != nil {
		return 0, 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	block := make([]byte, 8<<10)
	if _, err := f.Write(make([]byte, blocks*len(block))); err != nil {
		return 0, 0, err
	}
	if err := f.Sync(); err != nil {
		return 0, 0, err
	}
	took := make([]time.Duration, times)
	for i := range took {
		begin := time.Now()
		if _, err := f.WriteAt(block, int64(i%blocks*len(block))); err != nil {
			return 0, 0, err
		}
		if err := dataSync(f); err != nil {
			return 0, 0, err
		}
		took[i] = time.Since(begin)
	}
	slices.Sort(took)
	return took[times/2], took[times*99/100], nil
}
