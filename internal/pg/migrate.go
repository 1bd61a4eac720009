package pg

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib" // the driver that goose runs on
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/ledgerd/ledgerd/db/migrations"
)

// Errors of Migrate and CheckSchema.
var (
	// ErrUnknownMigration is returned for a database with a migration that this binary does not have: a newer binary
	// migrated it, or a snapshot from before the migrations were squashed.
	ErrUnknownMigration = errors.New("the database has a migration that this ledgerd does not know")
	// ErrPending is returned for a database that lacks migrations.
	ErrPending = errors.New("run `ledgerd migrate`")
	// ErrCannotMigrate is returned if the role lacks a right that migrations need.
	ErrCannotMigrate = errors.New("the role cannot migrate the database")
)

// Migrate brings the schema up to date. Several processes may call it at once: one migrates, and the others wait.
func Migrate(ctx context.Context, dsn string) error {
	s, err := openSchema(dsn)
	if err != nil {
		return err
	}
	defer s.db.Close()
	pending, err := s.pending(ctx)
	if err != nil {
		return err
	}
	if len(pending) == 0 {
		return nil
	}
	if err := s.checkRights(ctx); err != nil {
		return err
	}
	if _, err := s.provider.Up(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

// CheckSchema returns an error unless exactly the migrations of this binary are applied. It needs only the right to
// read goose_db_version, which ledgerd_app and ledgerd_audit have.
func CheckSchema(ctx context.Context, dsn string) error {
	s, err := openSchema(dsn)
	if err != nil {
		return err
	}
	defer s.db.Close()
	pending, err := s.pending(ctx)
	switch {
	case err != nil:
		return err
	case len(pending) == len(s.provider.ListSources()):
		return fmt.Errorf("the database has no schema: %w", ErrPending)
	case len(pending) > 0:
		return fmt.Errorf("the database lacks the migrations %v: %w", pending, ErrPending)
	}
	return nil
}

// schema is a database with the migrations of this binary.
type schema struct {
	db       *sql.DB
	provider *goose.Provider
}

func openSchema(dsn string) (*schema, error) {
	c, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, hide(err)
	}
	c.DefaultQueryExecMode = pgx.QueryExecModeExec // a pooler may lose prepared statements
	db := stdlib.OpenDB(*c)
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 60))
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, migrations.FS, goose.WithSessionLocker(locker))
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &schema{db, provider}, nil
}

// pending returns the versions that are not applied. It fails with ErrUnknownMigration if others are.
func (s *schema) pending(ctx context.Context) ([]int64, error) {
	applied, err := s.applied(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the version of the schema: %w", err)
	}
	var snapshot bool // from before the migrations were squashed; new migrations reuse their numbers
	err = s.db.QueryRowContext(ctx, "select to_regnamespace('notify_parts') is not null").Scan(&snapshot)
	if err != nil {
		return nil, fmt.Errorf("read the version of the schema: %w", err)
	}
	if snapshot {
		return nil, fmt.Errorf("%w: a snapshot before the first release created it; create a new database",
			ErrUnknownMigration)
	}
	var pending []int64
	var newest int64
	for _, source := range s.provider.ListSources() {
		newest = max(newest, source.Version)
		if i := slices.Index(applied, source.Version); i >= 0 {
			applied = slices.Delete(applied, i, i+1)
		} else {
			pending = append(pending, source.Version)
		}
	}
	if len(applied) > 0 {
		return nil, fmt.Errorf("%w: number %d, while the newest known is %d; install the ledgerd that migrated it, "+
			"or a newer one (a database of a snapshot before the first release must be created anew)",
			ErrUnknownMigration, slices.Max(applied), newest)
	}
	return pending, nil
}

// applied returns the versions that are applied, without writing: goose's own methods create their table.
func (s *schema) applied(ctx context.Context) ([]int64, error) {
	var exists bool
	err := s.db.QueryRowContext(ctx, "select to_regclass($1) is not null", goose.DefaultTablename).Scan(&exists)
	if err != nil || !exists {
		return nil, err
	}
	rows, err := s.db.QueryContext(ctx, "select distinct version_id from "+goose.DefaultTablename+
		" where is_applied and version_id > 0")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var versions []int64
	for rows.Next() {
		var version int64
		if err := rows.Scan(&version); err != nil {
			return nil, err
		}
		versions = append(versions, version)
	}
	return versions, rows.Err()
}

// rights lists the rights that migrations need and the role lacks. The first migration creates a schema, and roles
// unless the cluster has them. The table of versions belongs to the role that created it.
const rights = `
	select concat_ws(', ',
		case when to_regnamespace('audit') is null and not has_database_privilege(current_database(), 'create')
			then format('CREATE on database %I', current_database()) end,
		case when current_schema() is null then 'a schema in search_path'
			when to_regnamespace('audit') is null
				and not has_schema_privilege(current_schema(), 'create with grant option')
			then format('CREATE WITH GRANT OPTION on schema %I', current_schema()) end,
		case when u.rolcreaterole then null
			when r.existing < 4 then 'CREATEROLE'
			when not pg_has_role(r.owner, 'member') then 'membership in ledgerd_owner' end,
		case when not has_table_privilege(v.id, 'insert') then format('INSERT on table %s', v.id) end)
	from pg_roles u, to_regclass($1) v (id),
		(select count(*) as existing, max(oid) filter (where rolname = 'ledgerd_owner') as owner from pg_roles
			where rolname in ('ledgerd_owner', 'ledgerd_app', 'ledgerd_admin', 'ledgerd_audit')) r
	where u.rolname = current_user and not u.rolsuper`

// checkRights returns ErrCannotMigrate with the rights that the role lacks.
func (s *schema) checkRights(ctx context.Context) error {
	var missing string
	err := s.db.QueryRowContext(ctx, rights, goose.DefaultTablename).Scan(&missing)
	switch {
	case errors.Is(err, sql.ErrNoRows): // a superuser
		return nil
	case err != nil:
		return fmt.Errorf("read the rights of the role: %w", err)
	case missing != "":
		return fmt.Errorf("%w: it lacks %s", ErrCannotMigrate, missing)
	}
	return nil
}
