package pgtest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/db/migrations"
	"github.com/ledgerd/ledgerd/internal/pg"
)

const (
	// appRole and adminRole are login roles with the rights of the server and of administration, since ledgerd_app and
	// ledgerd_admin cannot log in. The passwords, their names, matter only for servers over TCP.
	appRole   = "ledgerd_test_app"
	adminRole = "ledgerd_test_admin"

	// templateLock is the advisory lock that serialises the creation of templates.
	templateLock = 0x6c65646765726474
)

// template returns the name of a migrated database, creating it if necessary. Its name contains a hash of the
// migrations, so edited migrations never use an old template.
func (c *cluster) template(ctx context.Context) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.templateName != "" {
		return c.templateName, nil
	}
	name, err := templateName(migrations.FS)
	if err != nil {
		return "", err
	}
	conn, err := pgx.Connect(ctx, c.dsn)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx) // releases the advisory lock
	if _, err = conn.Exec(ctx, "SELECT pg_advisory_lock($1)", int64(templateLock)); err != nil {
		return "", err
	}
	var exists bool
	err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&exists)
	if err == nil && !exists {
		err = c.makeTemplate(ctx, conn, name)
	}
	if err == nil {
		c.templateName = name
	}
	return name, err
}

// makeTemplate creates the database under a temporary name and renames it, so a database with the final name is
// always complete.
func (c *cluster) makeTemplate(ctx context.Context, conn *pgx.Conn, name string) error {
	unfinished := name + "_unfinished"
	for _, sql := range []string{
		"DROP DATABASE IF EXISTS " + unfinished + " WITH (FORCE)",
		"CREATE DATABASE " + unfinished,
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	if err := pg.Migrate(ctx, withDatabase(c.dsn, unfinished)); err != nil {
		return err
	}
	for _, sql := range []string{
		makeRole(appRole, "ledgerd_app"), makeRole(adminRole, "ledgerd_admin"),
		"ALTER DATABASE " + unfinished + " WITH allow_connections false",
		"ALTER DATABASE " + unfinished + " RENAME TO " + name,
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// makeRole creates a login role, unless another template has: roles belong to the whole cluster.
func makeRole(name, group string) string {
	return `DO $$
BEGIN
	IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '` + name + `') THEN
		CREATE ROLE ` + name + ` LOGIN PASSWORD '` + name + `';
	END IF;
	GRANT ` + group + ` TO ` + name + `;
END
$$`
}

func templateName(files fs.FS) (string, error) {
	hash := sha256.New()
	err := fs.WalkDir(files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(files, path)
		fmt.Fprintf(hash, "%q %d\n%s", path, len(content), content)
		return err
	})
	return fmt.Sprintf("ledgerd_template_%.8x", hash.Sum(nil)), err
}

// withDatabase changes the database of a URL or key-value DSN.
func withDatabase(dsn, database string) string {
	if u, ok := dsnURL(dsn); ok {
		u.Path = "/" + database
		return u.String()
	}
	return dsn + " dbname=" + database // the last one wins
}

// withUser changes the login role of a DSN. Its password is its name.
func withUser(dsn, user string) string {
	if u, ok := dsnURL(dsn); ok {
		u.User = url.UserPassword(user, user)
		return u.String()
	}
	return dsn + " user=" + user + " password=" + user
}

// withAllTenants returns a DSN whose sessions see the rows of all tenants.
func withAllTenants(dsn string) string {
	const option = "-c ledgerd.tenants=" + pg.AllTenants
	if u, ok := dsnURL(dsn); ok {
		query := u.Query()
		query.Set("options", option)
		u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
		return u.String()
	}
	return dsn + " options='" + option + "'"
}

func dsnURL(dsn string) (*url.URL, bool) {
	if !strings.HasPrefix(dsn, "postgres://") && !strings.HasPrefix(dsn, "postgresql://") {
		return nil, false
	}
	u, err := url.Parse(dsn)
	return u, err == nil
}
