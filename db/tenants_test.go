package db_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/verify/verifytest"
)

const tablesOfTenants = `select c.relname::text from pg_class c join pg_attribute a on a.attrelid = c.oid
	where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
		and a.attname = 'tenant_id' and not a.attisdropped`

// Convention 11.
func TestTablesOfTenantsHaveTheirPolicies(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.New(t).SuperDSN)
	for _, table := range lines(t, conn, tablesOfTenants+` and not (c.relrowsecurity
		and exists (select from pg_policy p where p.polrelid = c.oid and p.polname = 'tenants' and p.polcmd = '*'
			and p.polpermissive
			and p.polroles = array['ledgerd_app'::regrole::oid]
			and pg_get_expr(p.polqual, p.polrelid) like '%ledgerd.tenants%')
		and exists (select from pg_policy p where p.polrelid = c.oid and p.polname = 'auditors' and p.polcmd = 'r'
			and p.polroles = array['ledgerd_audit'::regrole::oid] and pg_get_expr(p.polqual, p.polrelid) = 'true')
		and exists (select from pg_policy p where p.polrelid = c.oid and p.polname = 'administrators'
			and p.polroles = array['ledgerd_admin'::regrole::oid])
		and (select count(*) from pg_policy p where p.polrelid = c.oid) = 3)`) {
		t.Errorf("%s has other policies than tenants, administrators and auditors of migration 20, or none", table)
	}
	for _, table := range lines(t, conn, `select c.relname::text from pg_class c where c.relispartition
		and c.relkind = 'r' and exists (select from aclexplode(c.relacl) a where a.grantee <> c.relowner)`) {
		t.Errorf("a role has privileges on the partition %s, which has no policies", table)
	}
}

// wall runs statements as the service, in a database with the rows of another tenant.
type wall struct {
	*testing.T
	super, app *pgx.Conn
	tables     []string
}

// access is the outcome of a statement: the number of rows that it read from each table of tenants, and of those that
// it tried to insert.
type access struct {
	read     map[string]float64
	inserted float64
	open     []string // tables that are read without the policy
	err      error
}

func (a *access) reached() bool { return len(a.read) > 0 || a.inserted > 0 || code(a.err) != "" }

func code(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// expire makes rows due, where their constraints allow it.
const expire = `set session_replication_role = replica; do $$
declare c record;
begin
	for c in select attrelid::regclass as relation, attname from pg_attribute a join pg_class r on r.oid = attrelid
		where relnamespace = 'public'::regnamespace and relkind = 'r' and not attisdropped and attname in (
			'expires_at', 'forget_at', 'timer_at', 'next_expiry_at', 'next_call_at', 'alive_until', 'hour',
			'finished_at', 'contents_until') loop
		begin
			execute format('update %s set %I = now() - interval ''200 days'' where %2$I is not null', c.relation,
			c.attname);
		exception when others then
			null;
		end;
	end loop;
end $$`

// stranger is a tenant without rows. Every statement runs in its transactions with the parameters of another tenant.
const stranger = 77

const (
	inAState  = "its rows are in a state that the fixture has not; its plan has the policy"
	andValues = "its parameters must fit each other; its plan has the policy"
)

// unreached maps statements that reach no row with generic parameters to the reasons.
var unreached = exceptions{
	"AdministratorCheck": "it asks for rights, not for rows", "AttemptMark": inAState, "CallAgain": inAState,
	"CallFlagDue": inAState, "CallRunning": inAState,
	"ClaimClean": inAState, "ClaimOverdue": inAState, "CodeUnsent": inAState, "CounterLock": andValues,
	"CountsClean": inAState, "CountsOverdue": inAState, "CouponPageOfOwner": andValues, "DeadFind": inAState,
	"DeadGroups": inAState, "FailedEventInsert": inAState, "HoldPageOpen": inAState,
	"LateDelete": inAState, "LateEventInsert": inAState, "LockClean": inAState, "LockStalePage": inAState,
	"MessageExpired": inAState, "MessageOverdue": inAState, "MessagePageOpen": inAState, "NoticeUnknown": inAState,
	"NoticeWaiting": inAState, "OrderPageOfState": andValues, "ParkedClean": inAState, "ParkedCount": inAState,
	"ParkedOverdue": inAState, "PaymentMessages": andValues, "RequeuedDue": inAState,
	"ReservationPageOpen": inAState, "ReversalLookup": andValues,
	"SentEventInsert": inAState, "SentFind": inAState, "SentTenant": inAState, "TokenClean": inAState,
	"TokenLock": andValues, "TokenOverdue": inAState, "WaiterClean": inAState, "WaiterCount": inAState,
	"WaiterLookup": inAState, "WorkBusy": inAState,
}

func TestNoStatementReachesRowsOfOtherTenants(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.SkipChecks()
	verifytest.Fill(t, db)
	do(t, connect(t, db.SuperDSN), `
		insert into access_api_keys (tenant_id, key_id, principal, role, secret_hash, created_by)
		values (1, 'k', 'p', 'read', sha256('x'), 'me');
		insert into access_policies (tenant_id, operation) values (1, '*');
		insert into notify_limits (tenant_id, channel, scope, window_s, max_messages) values (1, '*', 'tenant', 60, 5)`)
	do(t, connect(t, db.SuperDSN), expire)
	w := &wall{t, connect(t, db.SuperDSN), connect(t, db.AppDSN), lines(t, connect(t, db.SuperDSN), tablesOfTenants)}
	do(t, w.app, "set lock_timeout = '5s'; set enable_seqscan = off")
	read := map[string]bool{}
	var missed []string
	for _, s := range statements(t) {
		if !w.ofTenants(s.text) || strings.HasPrefix(strings.TrimSpace(s.text), "lock table") {
			continue
		}
		sql := w.filled(s)
		if sql == "" {
			continue
		}
		own := w.run(pg.TenantSet(verifytest.Demo), sql)
		for table := range own.read {
			read[table] = true
		}
		if !own.reached() {
			missed = append(missed, s.name)
		}
		for _, setting := range []string{pg.TenantSet(stranger), ""} {
			other := w.run(setting, sql)
			for _, table := range other.open {
				t.Errorf("%s reads %s without its policy\n%s", s.name, table, sql)
			}
			for table, n := range other.read {
				t.Errorf("%s with tenants %q reads %v rows of %s of another tenant\n%s", s.name, setting, n, table, sql)
			}
			switch c := code(other.err); {
			case c == "42501" && strings.Contains(other.err.Error(), "row-level security"),
				c == "LD001": // no row was touched
			case c == "42501" && strings.Contains(other.err.Error(),
				"permission denied"): // a statement of administration
			case c == "23514" && strings.Contains(other.err.Error(), "no partition"): // found before the policy
			case other.err != nil:
				t.Errorf("%s with tenants %q: %v\n%s", s.name, setting, other.err, sql)
			case other.inserted > 0:
				t.Errorf("%s with tenants %q inserts %v rows for another tenant\n%s",
					s.name, setting, other.inserted, sql)
			}
		}
	}
	unreached.hold(t, "reaches no row with the tenant's own setting", missed)
	for _, table := range w.tables {
		// these tables are empty, or only written
		if !read[table] && !slices.Contains([]string{"commit_counts", "lock_waiters", "machine_moves"}, table) {
			t.Errorf("no statement reads rows of %s", table)
		}
	}
}

func (w *wall) ofTenants(text string) bool {
	return slices.ContainsFunc(w.tables, func(table string) bool {
		return regexp.MustCompile(`\b` + table + `\b`).MatchString(text)
	})
}

// run runs a statement in a transaction of the service, and rolls it back.
func (w *wall) run(tenants, sql string) (a access) {
	w.Helper()
	tx, err := w.app.Begin(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	defer func() { _ = tx.Rollback(w.Context()) }()
	if _, err := tx.Exec(w.Context(), "select set_config('ledgerd.tenants', $1, true)", tenants); err != nil {
		w.Fatal(err)
	}
	var text string
	if a.err = tx.QueryRow(w.Context(), "explain (analyze, format json) "+sql).Scan(&text); a.err != nil {
		return a
	}
	var plans []struct{ Plan step }
	if err := json.Unmarshal([]byte(text), &plans); err != nil {
		w.Fatal(err)
	}
	a.read = map[string]float64{}
	plans[0].Plan.add(w.tables, &a)
	return a
}

// step is a node of a plan.
type step struct {
	Type      string  `json:"Node Type"`
	Relation  string  `json:"Relation Name"`
	Operation string  `json:"Operation"`
	Filter    string  `json:"Filter"`
	Rows      float64 `json:"Actual Rows"`
	Loops     float64 `json:"Actual Loops"`
	Plans     []step  `json:"Plans"`
}

var partition = regexp.MustCompile(`_[0-9]{6,8}$`)

func (s *step) add(tables []string, a *access) {
	if table := partition.ReplaceAllString(s.Relation, ""); slices.Contains(tables, table) && s.Type != "ModifyTable" {
		if s.Rows*s.Loops > 0 {
			a.read[table] += s.Rows * s.Loops
		}
		if !strings.Contains(s.Filter, "(tenant_id <@ ") && !strings.Contains(s.Filter, ".tenant_id <@ ") {
			a.open = append(a.open, table)
		}
	}
	if s.Operation == "Insert" {
		a.inserted += s.Plans[len(s.Plans)-1].Rows
	}
	for i := range s.Plans {
		s.Plans[i].add(tables, a)
	}
}

var parameter = regexp.MustCompile(`(^|[^<\w@])@([a-z_0-9]+)`)

// filled replaces the parameters of a statement by literals of the other tenant.
func (w *wall) filled(s statement) string {
	w.Helper()
	var names []string
	numbered := parameter.ReplaceAllStringFunc(strings.TrimRight(
		strings.TrimSpace(strings.ReplaceAll(s.text, `collate "c"`, `collate "C"`)), ";"), func(found string) string {
		m := parameter.FindStringSubmatch(found)
		if !slices.Contains(names, m[2]) {
			names = append(names, m[2])
		}
		return fmt.Sprintf("%s$%d", m[1], slices.Index(names, m[2])+1)
	})
	described, err := w.super.Prepare(w.Context(), "", numbered)
	if err != nil {
		w.Errorf("%s: %v", s.name, err)
		return ""
	}
	for i := len(names); i > 0; i-- {
		kind := lines(w.T, w.super, "select format_type($1::oid, null)", described.ParamOIDs[i-1])[0]
		numbered = regexp.MustCompile(fmt.Sprintf(`\$%d\b`, i)).ReplaceAllLiteralString(numbered,
			fmt.Sprintf("(%s)::%s", w.value(s, names[i-1], kind), kind))
	}
	return numbered
}

// value returns a literal for a parameter: the values of the column with its name in the statement's tables.
func (w *wall) value(s statement, name, kind string) string {
	base, array := strings.CutSuffix(kind, "[]")
	if strings.Contains(name, "tenant") && !strings.HasPrefix(name, "after") {
		if array {
			return fmt.Sprintf("'{%d}'", verifytest.Demo)
		}
		return fmt.Sprint(verifytest.Demo)
	}
	if name == "befores" {
		return `'{"{\"state\": \"open\"}"}'`
	}
	if name == "batch_ids" {
		return lines(w.T, w.super, "select quote_literal(array[max(transfer_id) >> 14]) from ledger_transfers "+
			"where tenant_id = $1", verifytest.Demo)[0]
	}
	for _, m := range named.FindAllStringSubmatch(s.text+" from "+target(s.text), -1) {
		if !slices.Contains(w.tables, m[1]) {
			continue
		}
		for _, column := range columns(name) {
			found := lines(w.T, w.super, `select coalesce(max(a.attname)::text, '') from pg_attribute a
				where attrelid = $1::text::regclass
				and attname = $2 and not attisdropped and format_type(atttypid, null) = $3`, m[1], column, base)[0]
			if found == "" {
				continue
			}
			from := fmt.Sprintf("(select %s as v from %s where tenant_id = %d order by ctid limit 1) x",
				column, m[1], verifytest.Demo)
			if !array {
				if v := lines(w.T, w.super, "select coalesce((select quote_literal(v::text) from "+from+
					" where v is not null limit 1), '')")[0]; v != "" {
					return v
				}
				continue
			}
			if v := lines(w.T, w.super, "select coalesce(quote_literal(array_agg(v)::text), '') "+
				"from "+from)[0]; v != "" {
				return v
			}
		}
	}
	return neutral(name, base, array)
}

var intoTable = regexp.MustCompile(`^\s*insert into (\w+)`)

func target(text string) string {
	if m := intoTable.FindStringSubmatch(text); m != nil {
		return m[1]
	}
	return ""
}

// columns returns the names of columns that a parameter may stand for.
func columns(name string) (all []string) {
	switch name {
	case "tids":
		return []string{"ctid"}
	case "writers":
		return []string{"xmin"}
	}
	name = strings.TrimPrefix(name, "only_")
	all = append(all, name, strings.TrimSuffix(name, "s"), strings.TrimSuffix(name, "es"))
	if y, ok := strings.CutSuffix(name, "ies"); ok {
		all = append(all, y+"y")
	}
	return all
}

// neutral returns a literal that excludes as few rows as possible.
func neutral(name, base string, array bool) string {
	late := regexp.MustCompile(`^(before|high|now|end|below|at$|scan|batch$|size|most|count|last|until|clock)`).
		MatchString(name)
	pick := func(low, high string) string {
		if late {
			return high
		}
		return low
	}
	v := map[string]string{"integer": pick("0", "1000"), "smallint": pick("0", "1000"),
		"bigint":  pick("0", "9000000000000000000"),
		"numeric": "0", "double precision": "60", "boolean": "false", "jsonb": "{}", "bytea": `\x00`,
		"date": "2030-01-01",
		"tid":  "(0,1)", "xid": "3", "timestamp with time zone": pick("1980-01-01Z", "2100-01-01Z"),
		"text": pick("", "zzz")}[base]
	if base == "text" && regexp.MustCompile(`^(counts|definitions|templates|variables|texts)$`).MatchString(name) {
		v = "{}" // an array or an object
	}
	if array {
		return `'{"` + strings.ReplaceAll(v, `\`, `\\`) + `"}'`
	}
	return "'" + v + "'"
}
