package localpg

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// reservedSettings determine the server's address and authentication. Overriding them would make DSN wrong.
var reservedSettings = []string{
	"config_file", "data_directory", "external_pid_file", "hba_file", "ident_file", "listen_addresses",
	"log_destination", "logging_collector", "port", "unix_socket_directories", "unix_socket_permissions",
}

// prepare validates the options and creates the directory.
func (o Options) prepare() (Options, error) {
	for name := range o.Settings {
		if slices.Contains(reservedSettings, strings.ToLower(name)) {
			return o, fmt.Errorf("setting %q is managed by localpg and cannot be changed", name)
		}
	}
	var err error
	if o.Dir == "" {
		if o.Dir, err = DefaultDir(); err != nil {
			return o, err
		}
	}
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return o, err
	}
	mode := fs.FileMode(0o700)
	if os.Geteuid() == 0 {
		mode = 0o755 // the unprivileged account must be able to enter it
	}
	if err = os.MkdirAll(o.Dir, mode); err != nil {
		return o, err
	}
	// Resolve symbolic links: old postmasters are recognised by the path in their arguments.
	o.Dir, err = filepath.EvalSymlinks(o.Dir)
	return o, err
}

// arguments is the complete configuration. postgresql.conf stays as initdb wrote it, so a start never depends
// on the settings of an earlier one.
func (s *Server) arguments() []string {
	durability := "off"
	if s.opts.Durable {
		durability = "on"
	}
	settings := map[string]string{
		"cluster_name":       "ledgerd",
		"fsync":              durability,
		"synchronous_commit": durability,
		"full_page_writes":   durability,
		"log_timezone":       "UTC",
		"max_connections":    "200",
		"shared_buffers":     "256MB",
		"timezone":           "UTC",
	}
	for name, value := range s.opts.Settings {
		settings[strings.ToLower(name)] = value
	}
	maps.Copy(settings, map[string]string{
		"hba_file":                s.hbaFile(),
		"listen_addresses":        s.listen.host,
		"log_destination":         "stderr",
		"logging_collector":       "off",
		"port":                    s.listen.port,
		"unix_socket_directories": s.sockDir,
		"unix_socket_permissions": "0700",
	})
	args := []string{"-D", s.dataDir}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args
}

// address is the TCP listen address. The port also names the unix socket.
type address struct{ host, port string }

func parseListen(listen string) (address, error) {
	if listen == "" {
		return address{port: "5432"}, nil
	}
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return address{}, fmt.Errorf("listen address %q: %w", listen, err)
	}
	if host == "" {
		host = "*"
	}
	if port == "0" {
		if port, err = freePort(strings.TrimSuffix(host, "*")); err != nil {
			return address{}, err
		}
	}
	return address{host: host, port: port}, nil
}

// freePort asks the kernel for a free port. Another program may take the port first; Postgres then fails to
// start and reports it.
func freePort(host string) (string, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

func (a address) dialHost() string {
	if a.host == "*" || a.host == "0.0.0.0" || a.host == "::" {
		return net.JoinHostPort("localhost", a.port)
	}
	return net.JoinHostPort(a.host, a.port)
}

func (s *Server) hbaFile() string { return filepath.Join(s.opts.Dir, "pg_hba.conf") }

// writeHBA trusts connections over the socket, which its directory protects, and requires a password over TCP.
func (s *Server) writeHBA() error {
	const rules = "# Written by ledgerd at every start.\n" +
		"local all         all     trust\n" +
		"local replication all     trust\n" +
		"host  all         all all scram-sha-256\n" +
		"host  replication all all scram-sha-256\n"
	// World-readable, because Postgres may run under another account; the file contains no secret.
	if err := os.WriteFile(s.hbaFile(), []byte(rules), 0o644); err != nil {
		return err
	}
	return os.Chmod(s.hbaFile(), 0o644)
}

// setPassword sets the superuser's password to the one in <dir>/password. It runs at every start, so that a
// restored data directory cannot disagree with the file.
func (s *Server) setPassword(ctx context.Context) error {
	file := filepath.Join(s.opts.Dir, "password")
	secret, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// The file is empty if a run was killed between creating and writing it.
	if s.secret = strings.TrimSpace(string(secret)); s.secret == "" {
		s.secret = rand.Text()
		if err = os.WriteFile(file, []byte(s.secret+"\n"), 0o600); err != nil {
			return err
		}
	}
	conn, err := pgx.Connect(ctx, s.DSN(Superuser, "postgres"))
	if err != nil {
		return fmt.Errorf("connect to set the password: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	// The statement contains the password: keep it out of the server's log.
	quoted := "'" + strings.ReplaceAll(s.secret, "'", "''") + "'"
	_, err = conn.Exec(ctx, "SET log_statement = 'none'; SET log_min_duration_statement = -1; "+
		"SET log_min_error_statement = 'panic'; SET password_encryption = 'scram-sha-256'; "+
		"SET standard_conforming_strings = on; ALTER ROLE "+Superuser+" PASSWORD "+quoted)
	if err != nil {
		return fmt.Errorf("set the superuser's password: %w", err)
	}
	return nil
}
