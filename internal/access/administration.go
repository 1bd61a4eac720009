package access

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/access/internal/db"
	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Reasons of administration.
var (
	TenantNotFound = fault.Register(fault.Reason{Name: "TENANT_NOT_FOUND", Class: fault.BadRequest,
		Code: fault.NotFound, Step: fault.Fix, Doc: "There is no tenant of this name."})
	PolicyNotFound = fault.Register(fault.Reason{Name: "POLICY_NOT_FOUND", Class: fault.BadRequest,
		Code: fault.NotFound, Step: fault.Fix, Doc: "The tenant has no policy of its own for the operation."})
)

// Administration changes tenants, API keys and policies, each in one transaction with its event in the audit log. Its
// pool needs the rights of ledgerd_admin. It is made for each call.
type Administration struct {
	pool      *pgxpool.Pool
	caller    Identity // zero: the login role of the database
	requestID string   // of the call
	grantor   *Rights  // rights of the caller, the most that it may grant; nil: all rights
}

// Administer returns an Administration for a command of the binary, on behalf of the database's login role.
func Administer(pool *pgxpool.Pool) *Administration { return &Administration{pool: pool} }

// For returns an Administration for a call of an authenticated caller. It does not check whether the caller may
// administer the tenant.
func (a *Administration) For(caller Identity, requestID string) *Administration {
	rights := caller.Rights()
	return &Administration{pool: a.pool, caller: caller, requestID: requestID, grantor: &rights}
}

// change is a transaction of administration.
type change struct {
	*Administration
	tx     pgx.Tx
	author string // as access_api_keys.created_by has it
}

// record adds an event to the audit log of a tenant. The event names a caller of another tenant as "operator
// TENANT/PRINCIPAL". No principal contains a space, so the name is unambiguous.
func (c *change) record(ctx context.Context, tenant int32, kind audit.Kind, name string, before, after any) error {
	by := commit.Caller{Tenant: tenant, Principal: c.caller.Principal, KeyID: c.caller.KeyID, RequestID: c.requestID}
	if by.Principal != "" && c.caller.Tenant != tenant {
		by.Principal = "operator " + c.author
	}
	return audit.Write(ctx, c.tx, by, audit.Change{Kind: kind, Name: name, Before: before, After: after})
}

// changeTimeout bounds a change: its caller may have no deadline, and a proxy may hide that the database is gone.
const changeTimeout = 10 * time.Second

// change runs a change in one transaction, which is as durable as a batch. Returns fault OUTCOME_UNKNOWN.
func (a *Administration) change(ctx context.Context, do func(context.Context, *change) error) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	conn, err := a.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	err = commit.Durably(ctx, conn.Conn(), func(tx pgx.Tx) error {
		by, err := q.Author(ctx, tx, db.AuthorParams{TenantID: a.caller.Tenant, Principal: a.caller.Principal,
			KeyID: a.caller.KeyID})
		if err != nil {
			return fmt.Errorf("name the author of a change: %w", err)
		}
		if !by.Valid { // the change would outlast the key
			return Unauthenticated.New("the API key was revoked, or has expired, a moment ago")
		}
		return do(ctx, &change{a, tx, by.Author})
	})
	var e *pgconn.PgError
	if errors.As(err, &e) && e.Code == insufficientPrivilege {
		err = fmt.Errorf("the login role may read but not administer: it must be a member of ledgerd_admin: %w", err)
	}
	return err
}

// insufficientPrivilege is the SQLSTATE of a statement that the role may not run.
const insufficientPrivilege = "42501"

// Change changes another package's tables and records the returned event, in one transaction.
func (a *Administration) Change(ctx context.Context, tenant int32,
	do func(ctx context.Context, tx pgx.Tx) (audit.Change, error)) error {
	return a.change(ctx, func(ctx context.Context, c *change) error {
		x, err := do(ctx, c.tx)
		if err != nil {
			return err
		}
		return c.record(ctx, tenant, x.Kind, x.Name, x.Before, x.After)
	})
}

// CheckAdministrator refuses a login role to which row-level security hides the rows of tenants: it would find no keys.
func CheckAdministrator(ctx context.Context, pool *pgxpool.Pool) error {
	row, err := q.AdministratorCheck(ctx, pool)
	if err != nil {
		return fmt.Errorf("read the rights of the role: %w", err)
	}
	if !row.Sees {
		return fmt.Errorf("the login role %s cannot administer: it must be a member of ledgerd_admin", row.Role)
	}
	return nil
}

// Pool returns the pool, for reads.
func (a *Administration) Pool() *pgxpool.Pool { return a.pool }

// TenantRecord is a tenant.
type TenantRecord struct {
	Number  int32
	Name    string
	Created time.Time
}

var tenantName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

// CreateTenant creates a tenant; existed is true if there was one of that name. Returns fault FIELD_INVALID.
func (a *Administration) CreateTenant(ctx context.Context, name string) (tenant int32, existed bool, err error) {
	if !tenantName.MatchString(name) {
		return 0, false, fault.InvalidField("name", "must be 1 to 63 lower-case letters, digits and hyphens, "+
			"and not begin with a hyphen")
	}
	err = a.change(ctx, func(ctx context.Context, c *change) error {
		for { // while other tenants take the number
			tenant, err = q.TenantGet(ctx, c.tx, name)
			if existed = err == nil; existed || !errors.Is(err, pgx.ErrNoRows) {
				return err
			}
			row, err := q.TenantInsert(ctx, c.tx, name)
			if errors.Is(err, pgx.ErrNoRows) {
				continue
			}
			if tenant = row.TenantID; err != nil {
				return err
			}
			return c.record(ctx, tenant, audit.Tenant, name, nil, map[string]int32{"tenant_id": tenant})
		}
	})
	if err != nil {
		return 0, false, fmt.Errorf("tenant %q: %w", name, err)
	}
	return tenant, existed, nil
}

// EnsureTenant returns the number of a tenant, creating it if necessary.
func EnsureTenant(ctx context.Context, pool *pgxpool.Pool, name string) (int32, error) {
	id, err := Tenant(ctx, pool, name)
	if fault.Is(err, TenantNotFound) {
		id, _, err = Administer(pool).CreateTenant(ctx, name)
	}
	return id, err
}

// Tenant returns the number of an existing tenant. Returns fault TENANT_NOT_FOUND.
func Tenant(ctx context.Context, from db.DBTX, name string) (int32, error) {
	id, err := q.TenantGet(pg.ForAllTenants(ctx), pg.Planned{DB: from}, name)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, TenantNotFound.New("there is no tenant %q", name).WithField("tenant", "must be a tenant that exists")
	}
	return id, err
}

// ListTenants lists tenants by name, after a name.
func ListTenants(ctx context.Context, from db.DBTX, after string, size int) ([]TenantRecord, error) {
	rows, err := q.TenantList(ctx, from, db.TenantListParams{After: after, Size: int32(size)})
	if err != nil {
		return nil, fmt.Errorf("list tenants: %w", err)
	}
	tenants := make([]TenantRecord, len(rows))
	for i, r := range rows {
		tenants[i] = TenantRecord{r.TenantID, r.Name, r.CreatedAt}
	}
	return tenants, nil
}
