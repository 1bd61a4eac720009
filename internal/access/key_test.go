package access_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// office is a tenant with pools of the service, of administration, and of a superuser.
type office struct {
	t                 *testing.T
	app, admin, super *pgxpool.Pool
	adminDSN          string
	tenant            int32
}

func newOffice(t *testing.T) *office {
	t.Helper()
	db := pgtest.New(t)
	o := &office{t: t, adminDSN: db.AdminDSN, app: pgtest.Pool(t, db.AppDSN), admin: pgtest.Pool(t, db.AdminDSN),
		super: pgtest.Pool(t, db.SuperDSN)}
	var err error
	if o.tenant, err = access.EnsureTenant(t.Context(), o.admin, "acme"); err != nil {
		t.Fatal(err)
	}
	return o
}

func (o *office) create(r access.Rights) access.Key {
	o.t.Helper()
	k, err := access.Administer(o.admin).CreateKey(o.t.Context(), o.tenant,
		access.NewKey{Principal: "orders", Rights: r})
	if err != nil {
		o.t.Fatal(err)
	}
	return k
}

func scopes(t *testing.T, texts ...string) *access.Scopes {
	t.Helper()
	s, err := access.ParseScopes(texts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestKeyHasItsRights(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	end := time.Now().Add(time.Hour)
	want := access.Rights{Role: access.Write, Scopes: scopes(t, "ledger.*(from=user:*)"), Expires: end, CallRate: 7,
		CallLimit: 3}
	k := o.create(want)
	id, err := access.NewKeys(o.app).Authenticate(t.Context(), k.Secret)
	if err != nil || id.Tenant != o.tenant || id.Principal != "orders" || id.Role != access.Write ||
		strings.Join(id.Scopes.Texts(), ";") != "ledger.*(from=user:*)" || id.CallRate != 7 || id.CallLimit != 3 ||
		id.Expires.Sub(end).Abs() > time.Minute || id.Calls == nil {
		t.Errorf("%+v, %v", id, err)
	}
	list, err := access.ListKeys(t.Context(), o.admin, o.tenant, access.KeyPlace{}, 10)
	if err != nil || len(list) != 1 || list[0].CreatedBy != "ledgerd_test_admin" || list[0].ID != k.ID ||
		list[0].Secret != "" || list[0].CallRate != 7 || list[0].Expires.Sub(end).Abs() > time.Millisecond {
		t.Errorf("%+v, %v", list, err)
	}
	if more, err := access.ListKeys(t.Context(), o.admin, o.tenant, list[0].Place(), 10); len(more) != 0 || err != nil {
		t.Errorf("after the last: %+v, %v", more, err)
	}
}

// A key expires on time even if its identity is cached.
func TestKeyExpiresAtItsTime(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	k := o.create(access.Rights{Role: access.Read, Expires: time.Now().Add(time.Second)})
	keys := access.NewKeys(o.app)
	_, err := keys.Authenticate(t.Context(), k.Secret)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = keys.Authenticate(t.Context(), k.Secret)
	}
	if late := time.Since(k.Expires); !fault.Is(err, access.Unauthenticated) ||
		!strings.Contains(err.Error(), "the API key has expired") || late < 0 || late > 2*time.Second {
		t.Errorf("%v late: %v", late, err)
	}
	if _, err := keys.Authenticate(t.Context(), k.Secret[:len(k.Secret)-1]+"!"); err == nil ||
		strings.Contains(err.Error(), "expired") {
		t.Errorf("a wrong secret: %v", err)
	}
}

func TestRotatedKeyOverlapsWithItsSuccessor(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	a := access.Administer(o.admin)
	first := o.create(access.Rights{Role: access.Write, Scopes: scopes(t, "stock.*"), CallRate: 5})
	before := time.Now()
	if _, _, err := a.RotateKey(t.Context(), o.tenant, first.ID, time.Hour, before.Add(time.Minute)); !fault.Is(err,
		fault.FieldInvalid) || fault.Of(err).Fields[0].Path != "expire_time" {
		t.Errorf("a successor that ends before the old key: %v", err)
	}
	second, old, err := a.RotateKey(t.Context(), o.tenant, first.ID, time.Hour, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if left := old.Expires.Sub(before); left < 50*time.Minute || left > 70*time.Minute || old.ID != first.ID {
		t.Errorf("the old key: %+v", old)
	}
	keys := access.NewKeys(o.app)
	for _, k := range []access.Key{first, second} {
		if id, err := keys.Authenticate(t.Context(), k.Secret); err != nil || id.Principal != "orders" ||
			id.Role != access.Write || id.CallRate != 5 || strings.Join(id.Scopes.Texts(), "") != "stock.*" {
			t.Errorf("%+v, %v", id, err)
		}
	}
	if !second.Expires.IsZero() {
		t.Errorf("the successor expires at %v", second.Expires)
	}
	// A longer overlap does not extend the old key's life; without an overlap the old key ends at once.
	if _, old, err = a.RotateKey(t.Context(), o.tenant, first.ID, 48*time.Hour, before.Add(24*time.Hour)); err != nil ||
		old.Expires.After(before.Add(2*time.Hour)) {
		t.Errorf("%v, %v", old.Expires, err)
	}
	if _, _, err := a.RotateKey(t.Context(), o.tenant, first.ID, 0, time.Time{}); !fault.Is(err, fault.FieldInvalid) {
		t.Errorf("the key expires, its successor would not: %v", err)
	}
	if _, _, err := a.RotateKey(t.Context(), o.tenant, first.ID, 0, before.Add(24*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := access.NewKeys(o.app).Authenticate(t.Context(), first.Secret); !fault.Is(err, access.Unauthenticated) {
		t.Errorf("after a rotation without overlap: %v", err)
	}
	for _, id := range []string{first.ID, "nothing"} {
		if _, _, err := a.RotateKey(t.Context(), o.tenant, id, 0, time.Time{}); !fault.Is(err, access.KeyNotFound) {
			t.Errorf("rotate %s: %v", id, err)
		}
	}
	if _, _, err := a.RotateKey(t.Context(), o.tenant, second.ID, access.MaxOverlap+1, time.Time{}); !fault.Is(err,
		fault.FieldInvalid) {
		t.Errorf("an overlap of more than the most: %v", err)
	}
}

func TestUseOfAKeyIsRecordedCoarsely(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	k := o.create(access.Rights{Role: access.Read})
	used := func() (at time.Time) {
		list, err := access.ListKeys(t.Context(), o.admin, o.tenant, access.KeyPlace{}, 1)
		if err != nil {
			t.Fatal(err)
		}
		return list[0].Used
	}
	use := func() {
		if _, err := access.NewKeys(o.app).Authenticate(t.Context(), k.Secret); err != nil {
			t.Fatal(err)
		}
	}
	for use(); used().IsZero(); { // recorded asynchronously
	}
	const mark = "2020-01-01T00:00:00Z"
	if _, err := o.super.Exec(t.Context(), "update access_api_keys set used_at = $1", mark); err != nil {
		t.Fatal(err)
	}
	for use(); used().UTC().Format(time.RFC3339) == mark; {
	}
	if _, err := o.super.Exec(t.Context(), "update access_api_keys set used_at = now() - interval '10 s'"); err != nil {
		t.Fatal(err)
	}
	before := used()
	use()
	if err := access.WaitTouched(t.Context(), access.NewKeys(o.app), k.Secret); err != nil || !used().Equal(before) {
		t.Errorf("recorded again within a minute: %v, %v", used(), err)
	}
}

// TestGivenRightsAreNoGreaterThanOnesOwn creates keys on behalf of callers.
func TestGivenRightsAreNoGreaterThanOnesOwn(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	end := time.Now().Add(time.Hour)
	rights := func(change func(*access.Rights)) access.Rights {
		r := access.Rights{Role: access.Admin, Scopes: scopes(t, "ledger.*(from=user:*)", "admin.*"), Expires: end,
			CallRate: 10, CallLimit: 10}
		change(&r)
		return r
	}
	own := rights(func(*access.Rights) {})
	grantor := access.Identity{Tenant: o.tenant, Principal: "boss", Role: own.Role, Scopes: own.Scopes,
		Expires:  own.Expires,
		CallRate: own.CallRate, CallLimit: own.CallLimit}
	a := access.Administer(o.admin).For(grantor, "r")
	for field, change := range map[string]func(*access.Rights){
		"role":        func(r *access.Rights) { r.Role = access.Operator },
		"scopes":      func(r *access.Rights) { r.Scopes = nil },
		"scopes ":     func(r *access.Rights) { r.Scopes = scopes(t, "ledger.transfer") },
		"scopes  ":    func(r *access.Rights) { r.Scopes = scopes(t, "ledger.transfer(from=*)") },
		"expire_time": func(r *access.Rights) { r.Expires = end.Add(time.Second) },
		"call_rate":   func(r *access.Rights) { r.CallRate = 11 },
		"call_limit":  func(r *access.Rights) { r.CallLimit = 0 },
	} {
		_, err := a.CreateKey(t.Context(), o.tenant, access.NewKey{Principal: "x", Rights: rights(change)})
		if f := fault.Of(err); !fault.Is(err, access.PermissionDenied) || f.Fields[0].Path != strings.TrimSpace(field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	k, err := a.CreateKey(t.Context(), o.tenant, access.NewKey{Principal: "x", Rights: rights(func(r *access.Rights) {
		r.Role, r.Scopes, r.CallRate = access.Write, scopes(t, "ledger.transfer(from=user:1*, to=shop)"), 1
	})})
	if err != nil || k.CreatedBy != "acme/boss" {
		t.Errorf("%+v, %v", k, err)
	}
	free := o.create(access.Rights{Role: access.Admin})
	if _, _, err := a.RotateKey(t.Context(), o.tenant, free.ID, 0, time.Time{}); !fault.Is(err,
		access.PermissionDenied) ||
		fault.Of(err).Fields[0].Path != "key_name" {
		t.Errorf("the successor of a greater key: %v", err)
	}
	small := access.Identity{Tenant: o.tenant, Principal: "op", Role: access.Operator, Expires: end,
		Scopes: scopes(t, "admin.rotate_key")}
	operator := access.Administer(o.admin).For(small, "r")
	if _, err := operator.CreateKey(t.Context(), o.tenant, access.NewKey{Principal: "x",
		Rights: access.Rights{Role: access.Admin}}); err != nil {
		t.Errorf("an operator: %v", err)
	}
	full := o.create(access.Rights{Role: access.Operator})
	if _, _, err := operator.RotateKey(t.Context(), o.tenant, full.ID, 0, end); !fault.Is(err,
		access.PermissionDenied) {
		t.Errorf("the successor of a greater operator: %v", err)
	}
	own2 := o.create(small.Rights())
	if _, _, err := operator.RotateKey(t.Context(), o.tenant, own2.ID, 0, end.Add(time.Second)); !fault.Is(err,
		access.PermissionDenied) {
		t.Errorf("a successor that lives longer: %v", err)
	}
	if _, _, err := a.RevokeKey(t.Context(), o.tenant, full.ID); !fault.Is(err, access.PermissionDenied) {
		t.Errorf("an administrator revokes an operator: %v", err)
	}
	if _, _, err := operator.RevokeKey(t.Context(), o.tenant, full.ID); err != nil {
		t.Errorf("an operator revokes: %v", err)
	}
}

// A server may cache a key for some seconds after its end. Meanwhile the key cannot administer: a change would outlast
// the key.
func TestEndedKeysAdministerNothing(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	for what, end := range map[string]func(id string) error{
		"revoked": func(id string) error {
			_, _, err := access.Administer(o.admin).RevokeKey(t.Context(), o.tenant, id)
			return err
		},
		"expired": func(id string) error {
			_, _, err := access.Administer(o.admin).RotateKey(t.Context(), o.tenant, id, 0, time.Time{})
			return err
		},
	} {
		k := o.create(access.Rights{Role: access.Admin})
		id, err := access.NewKeys(o.app).Authenticate(t.Context(), k.Secret)
		if err != nil {
			t.Fatal(err)
		}
		a := access.Administer(o.admin).For(id, "r")
		if err := a.PutPolicy(t.Context(), o.tenant, access.Policy{Operation: "*"}); err != nil {
			t.Errorf("not yet %s: %v", what, err)
		}
		if err := end(k.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := a.CreateKey(t.Context(), o.tenant, access.NewKey{Principal: "x",
			Rights: access.Rights{Role: access.Admin}}); !fault.Is(err, access.Unauthenticated) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A key accepts only one spelling of its tenant's number: calls with other spellings would be counted separately.
func TestKeysHaveOneSpelling(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	k := o.create(access.Rights{Role: access.Read})
	keys := access.NewKeys(o.app)
	for _, number := range []string{"01", "+1", "001"} {
		other := strings.Replace(k.Secret, "_1_", "_"+number+"_", 1)
		if _, err := keys.Authenticate(t.Context(), other); other == k.Secret ||
			!fault.Is(err, access.Unauthenticated) {
			t.Errorf("%s: %v", number, err)
		}
	}
}

// Changes at the same moment follow each other in the audit log.
func TestConcurrentChangesAreRecordedInOrder(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	for round := range 20 {
		operation := fmt.Sprint("ledger.x", strings.Repeat("x", round))
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				if err := access.Administer(o.admin).PutPolicy(t.Context(), o.tenant,
					access.Policy{Operation: operation,
						KeyLife: time.Duration(i+1) * time.Hour}); err != nil {
					t.Error(err)
				}
				if err := access.Administer(o.admin).Change(t.Context(), o.tenant,
					func(ctx context.Context, tx pgx.Tx) (audit.Change, error) {
						return notify.PutLimit(ctx, tx, o.tenant, notify.Limit{Channel: "sms", Scope: "tenant",
							Window: time.Duration(round+1) * time.Minute, MaxMessages: int32(i)})
					}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	var wrong int
	if err := o.super.QueryRow(t.Context(), `select count(*) from (
			select before, lag(after) over (partition by kind, name order by event_id) as earlier
			from audit_events where kind in ('policy', 'limit')
		) e where before is distinct from earlier`).Scan(&wrong); err != nil || wrong > 0 {
		t.Errorf("%d events do not follow the one before: %v", wrong, err)
	}
}

func TestInvalidKeysNameTheirField(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	for field, n := range map[string]access.NewKey{
		"principal":   {Principal: "two words", Rights: access.Rights{Role: access.Read}},
		"role":        {Principal: "x"},
		"expire_time": {Principal: "x", Rights: access.Rights{Role: access.Read, Expires: time.Unix(1, 0)}},
		"expire_time ": {Principal: "x", Rights: access.Rights{Role: access.Read,
			Expires: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}},
		"call_rate":  {Principal: "x", Rights: access.Rights{Role: access.Read, CallRate: -1}},
		"call_limit": {Principal: "x", Rights: access.Rights{Role: access.Read, CallLimit: access.MaxCalls + 1}},
	} {
		_, err := access.Administer(o.admin).CreateKey(t.Context(), o.tenant, n)
		if f := fault.Of(err); !fault.Is(err, fault.FieldInvalid) || f.Fields[0].Path != strings.TrimSpace(field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, _, err := access.Administer(o.admin).CreateTenant(t.Context(), "Not Good"); !fault.Is(err,
		fault.FieldInvalid) {
		t.Errorf("tenant: %v", err)
	}
}

// The caller has no deadline, and a proxy hides that the database is gone.
func TestChangesGiveUpWhenTheDatabaseIsSilent(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	p := pgtest.NewProxy(t, o.adminDSN)
	pool := pgtest.Pool(t, p.DSN)
	if _, err := access.Administer(pool).CreateKey(t.Context(), o.tenant, access.NewKey{Principal: "first",
		Rights: access.Rights{Role: access.Read}}); err != nil {
		t.Fatal(err)
	}
	p.Silence(pgtest.Requests)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := access.Administer(pool).CreateKey(ctx, o.tenant, access.NewKey{Principal: "second",
			Rights: access.Rights{Role: access.Read}})
		done <- err
	}()
	select {
	case err := <-done:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ended with: %v", err)
		}
	case <-time.After(40 * time.Second):
		t.Error("a change waits for a silent database")
	}
}

// Concurrent changes of one policy do not overwrite each other's settings.
func TestConcurrentChangesOfAPolicyAddUp(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	changes := []func(*access.Policy) error{
		func(p *access.Policy) error { p.KeyRequired = true; return nil },
		func(p *access.Policy) error { p.TokenRequired = true; return nil },
		func(p *access.Policy) error { p.ApprovalRequired = true; return nil },
		func(p *access.Policy) error { p.KeyLife = time.Hour; return nil },
	}
	for round := range 10 {
		operation := "ledger.transfer_" + strings.Repeat("x", round)
		var all sync.WaitGroup
		for _, by := range changes {
			all.Go(func() {
				if _, err := access.Administer(o.admin).ChangePolicy(t.Context(), o.tenant, operation, by); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		policies, err := access.ListPolicies(t.Context(), o.admin, o.tenant)
		want := access.Policy{Operation: operation, KeyRequired: true, TokenRequired: true, ApprovalRequired: true,
			KeyLife: time.Hour}
		if err != nil || !slices.Contains(policies, want) {
			t.Errorf("round %d: %v, %v", round, policies, err)
		}
	}
}

// The error names the missing right of a login role that may only read.
func TestAnAuditorsErrorSaysThatItDoesNotAdminister(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	config := o.super.Config().Copy()
	config.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "set role ledgerd_audit")
		return err
	}
	auditor, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer auditor.Close()
	_, err = access.Administer(auditor).CreateKey(t.Context(), o.tenant,
		access.NewKey{Principal: "x", Rights: access.Rights{Role: access.Read}})
	if err == nil || !strings.Contains(err.Error(), "the login role may read but not administer: "+
		"it must be a member of ledgerd_admin") {
		t.Error(err)
	}
}
