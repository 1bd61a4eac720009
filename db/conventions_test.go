package db_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// The conventions for tables and statements, docs/engine.md: one test each, with the exceptions and their reasons. An
// exception that is no longer needed fails too.

// statement is one statement of db/queries, without comments and in lower case.
type statement struct{ name, text string }

var (
	lineComment = regexp.MustCompile(`--[^\n]*`)
	queryHead   = regexp.MustCompile(`(?m)^-- name: (\w+) :\w+\n`)
)

func statements(t *testing.T) (all []statement) {
	t.Helper()
	files, err := filepath.Glob("queries/*/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text := read(t, file)
		heads := queryHead.FindAllStringSubmatchIndex(text, -1)
		for i, head := range heads {
			end := len(text)
			if i+1 < len(heads) {
				end = heads[i+1][0]
			}
			all = append(all, statement{text[head[2]:head[3]],
				strings.ToLower(lineComment.ReplaceAllString(text[head[1]:end], ""))})
		}
	}
	if len(all) < 200 {
		t.Fatalf("only %d statements", len(all))
	}
	return all
}

// sources lists the hand-written Go and SQL files below roots, without tests and package pgtest.
func sources(t *testing.T, roots ...string) (files []string) {
	t.Helper()
	for _, root := range roots {
		err := filepath.WalkDir(root, func(file string, entry os.DirEntry, err error) error {
			if err == nil && !entry.IsDir() && !strings.HasSuffix(file, "_test.go") &&
				!strings.Contains(file, "/internal/db/") && !strings.HasPrefix(file, "../internal/pgtest/") &&
				(strings.HasSuffix(file, ".go") || strings.HasSuffix(file, ".sql")) {
				files = append(files, file)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// exceptions maps a name to the reason why it breaks a convention.
type exceptions map[string]string

// hold fails the test for every name without an exception, and for every exception that is not among the names.
func (e exceptions) hold(t *testing.T, what string, names []string) {
	t.Helper()
	for _, name := range names {
		if e[name] == "" {
			t.Errorf("%s %s", name, what)
		}
	}
	for name := range e {
		if !slices.Contains(names, name) {
			t.Errorf("%s is an exception that is not needed", name)
		}
	}
}

const (
	background = "background work, over all tenants"
	ownRead    = "returns the changed rows or their number to the caller; its COMMIT is not pipelined"
	oneRow     = "inserts one row"
)

var (
	named        = regexp.MustCompile(`\b(?:from|join|into|update|using)\s+([a-z]+_[a-z_]+)\b`)
	tenantParam  = regexp.MustCompile(`@(?:\w*tenant\w*|tids)\b`)
	cleaning     = regexp.MustCompile(`^\w+(Clean|Overdue)$`)
	withoutFirst = exceptions{
		"access_tenants_name_key": "tenants are found by name",
		"commit_batches_pkey":     "a batch has commands of many tenants",
		"secret_roots_pkey":       "one secret for the database",
		"commit_epochs_pkey":      "all tenants share the history",
		"ids_workers_pkey":        "a process makes ids for all tenants",
	}
)

// Convention 1.
func TestKeysAndLookUpsBeginWithTheTenant(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.New(t).SuperDSN)
	withoutFirst.hold(t, "does not begin with tenant_id", lines(t, conn, `
		select i.relname::text from pg_index x join pg_class i on i.oid = x.indexrelid
		join pg_class c on c.oid = x.indrelid
		left join pg_attribute a on a.attrelid = c.oid and a.attnum = x.indkey[0]
		where x.indisunique and c.relnamespace = 'public'::regnamespace and not c.relispartition
		and c.relname not like 'goose%'
			and (a.attname is distinct from 'tenant_id' or c.relname = 'access_tenants'
			and i.relname <> 'access_tenants_pkey')`))
	ofTenants := lines(t, conn, `select c.relname::text from pg_class c join pg_attribute a on a.attrelid = c.oid
		where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and a.attname = 'tenant_id'
		and c.relname <> 'access_tenants'`)
	var without []string
	for _, s := range statements(t) {
		if tenantParam.MatchString(s.text) || cleaning.MatchString(s.name) {
			continue
		}
		for _, m := range named.FindAllStringSubmatch(s.text, -1) {
			if slices.Contains(ofTenants, m[1]) {
				without = append(without, s.name)
				break
			}
		}
	}
	exceptions{"HoldDuePage": background, "InstanceDuePage": background, "DueGroups": background,
		"MessageExpired": background,
		"CallStats":      background, "FlagStats": background,
		"ParkedCount": background, "SentTenant": "see TestNoTenantIsFoundByData",
	}.hold(t, "reads a table of tenants without a tenant", without)
}

var returnsTenant = regexp.MustCompile(`(?s)^\s*(?:with .*\)\s*)?select [^;]*?\btenant_id\b.*?\bfrom\b`)

// Convention 2.
func TestNoTenantIsFoundByData(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.New(t).SuperDSN)
	for _, key := range lines(t, conn, `select k.conname::text from pg_constraint k
		where k.contype = 'f' and k.connamespace = 'public'::regnamespace and not exists (
			select from pg_attribute a where a.attrelid = k.conrelid and a.attnum = any(k.conkey)
			and a.attname = 'tenant_id')`) {
		t.Errorf("foreign key %s has no tenant", key)
	}
	var found []string
	for _, s := range statements(t) {
		if !tenantParam.MatchString(s.text) && returnsTenant.MatchString(s.text) {
			found = append(found, s.name)
		}
	}
	exceptions{"HoldDuePage": background, "InstanceDuePage": background, "DueGroups": background,
		"MessageExpired": background,
		"CallStats":      background,
		"TenantGet":      "tenants are found by name",
		"TenantList":     "operators list tenants by name",
		"SentTenant": "delivery reports of a provider that echoes no reference of ours (Tencent) have " +
			"its number alone",
	}.hold(t, "finds a tenant by data", found)
}

var (
	migrationHead = regexp.MustCompile(`(?m)^-- \+goose Up\n(.*)$`)
	qualified     = regexp.MustCompile(`\b(public|notify_parts)\.\w`)
)

// Convention 3. Search paths of functions: TestFunctionsOfTheOwnerSearchTemporaryObjectsLast.
func TestTablesAreInOneSchemaAndUnqualified(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.New(t).SuperDSN)
	for _, other := range lines(t, conn, `select nspname::text from pg_namespace
		where nspname not in ('public', 'audit', 'information_schema') and nspname not like 'pg\_%'
		union all
		select c.oid::regclass::text from pg_class c where c.relnamespace = 'audit'::regnamespace
		and c.relkind <> 'v'`) {
		t.Errorf("%s is a schema, or a table beside the views of audit", other)
	}
	for _, pattern := range []string{"migrations/*.sql", "queries/*/*.sql", "checks/*.sql",
		"../internal/verify/sql/*.sql"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) < 5 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			text := read(t, file)
			if m := qualified.FindString(text); m != "" {
				t.Errorf("%s names a schema: %s", file, m)
			}
			if !strings.HasPrefix(file, "migrations") {
				continue
			}
			const first = "select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);"
			if m := migrationHead.FindStringSubmatch(text); m == nil || m[1] != first {
				t.Errorf("%s does not begin with %s", file, first)
			}
		}
	}
}

var (
	writes     = regexp.MustCompile(`\b(insert into|delete from|update) ([a-z]+_[a-z_]+)\b`)
	insertCTE  = regexp.MustCompile(`\bas (?:not )?(?:materialized )?\(\s*insert into`)
	values     = regexp.MustCompile(`(?s)insert into [^;]*?\)\s*values`)
	setClause  = regexp.MustCompile(`(?s)\bset\b(.*?)(?:\bfrom\b|\bwhere\b|\breturning\b|$)`)
	returning  = regexp.MustCompile(`(?s)\breturning\b(.*?)(?:\n\)|;|$)`)
	changeable = regexp.MustCompile(
		`\b(?:now|\w+_timestamp|nextval|random|gen_random_uuid|set_config|current_setting|pg_\w+)\s*\(`)
)

// Convention 4.
func TestWritingStatementsHaveOneForm(t *testing.T) {
	t.Parallel()
	var many, inserts, functions, single, unchecked []string
	for _, s := range statements(t) {
		all := writes.FindAllStringSubmatch(s.text, -1)
		if len(all) == 0 {
			continue
		}
		if len(all) > 1 {
			many = append(many, s.name)
		}
		if insertCTE.MatchString(s.text) {
			inserts = append(inserts, s.name)
		}
		for _, m := range append(setClause.FindAllStringSubmatch(s.text, -1),
			returning.FindAllStringSubmatch(s.text, -1)...) {
			if changeable.MatchString(m[1]) {
				functions = append(functions, s.name)
			}
		}
		if values.MatchString(s.text) {
			single = append(single, s.name)
		}
		if all[0][1] != "insert into" && !strings.Contains(s.text, "commit_expect(") && !cleaning.MatchString(s.name) {
			unchecked = append(unchecked, s.name)
		}
	}
	exceptions{}.hold(t, "writes twice", many)
	exceptions{}.hold(t, "has an insert in a CTE", inserts)
	exceptions{}.hold(t, "has a volatile or stable function in SET or RETURNING", functions)
	exceptions{"APIKeyInsert": oneRow, "PolicyInsert": oneRow, "PolicyUpsert": oneRow, "LimitInsert": oneRow,
		"LimitUpsert": oneRow, "BatchInsert": oneRow, "BatchVoid": oneRow}.hold(t, "does not insert from a select",
		single)
	exceptions{
		"APIKeyRevoke": ownRead, "APIKeyExpire": ownRead, "PolicyDelete": ownRead, "LimitDelete": ownRead,
		"QueueTake": ownRead, "AttemptMark": ownRead, "SentDelete": ownRead, "FailedUpdate": ownRead,
		"WorkerLease": ownRead, "WorkerRenew": ownRead, "WorkerRelease": ownRead, "MessageDelete": ownRead,
		"APIKeyUsed": "another process may record the use",
		"RootReseal": "another process may have resealed it",
		"CallTake":   ownRead, "CallTakeOne": ownRead, "CallAgain": ownRead,
		"CallDelete":     "a payment or refund may have no call left",
		"CallClose":      "an order may have no open payment",
		"LateDelete":     "another process may have settled them",
		"ContentDrop":    "a message may have no content",
		"ContentsForget": "a message may have no content",
	}.hold(t, "updates or deletes without commit_expect", unchecked)
}

var tablesOfBody = regexp.MustCompile(`(?i)\b(?:from|join|into|update)\s+([a-z_.]+)`)

// Convention 5.
func TestStatementTriggersReadTheirOwnRows(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.New(t).SuperDSN)
	all := lines(t, conn, `select concat_ws(E'\x1f', t.tgname, coalesce(t.tgnewtable, ''), coalesce(t.tgoldtable, ''),
		p.prosrc)
		from pg_trigger t join pg_proc p on p.oid = t.tgfoid where not t.tgisinternal`)
	if len(all) < 5 {
		t.Fatalf("only %d triggers", len(all))
	}
	names := []string{"bad", "olds", "news", "unnest", "lateral"} // variables, and words of SQL
	var others []string
	for _, trigger := range all {
		f := strings.SplitN(trigger, "\x1f", 4)
		for _, m := range tablesOfBody.FindAllStringSubmatch(lineComment.ReplaceAllString(f[3], ""), -1) {
			if m[1] != f[1] && m[1] != f[2] && !slices.Contains(names, m[1]) {
				others = append(others, f[0]+": "+m[1])
			}
		}
	}
	const allowed = "which moves are allowed is data; it copies its transition tables into arrays first"
	exceptions{
		"machine_instances_created: machine_moves": allowed, "machine_instances_moved: machine_moves": allowed,
		"machine_instances_created: gone":    "not in the branch of an insert",
		"commit_epochs_begin: commit_epochs": "of the epoch before, one row", "commit_epochs_begin: last": "a variable",
		"commit_epochs_check: commit_epochs": "the inserted row, by its key",
	}.hold(t, "is read by a trigger", others)
}

// rising maps each sequence to the columns that have its values. These must never decrease: after a move to another
// database, a sequence must start above the greatest value of its columns less the base of its epoch.
var rising = map[string][]string{
	"commit_batch_seq": {"commit_batches.batch_id"},
	"lock_fence_seq":   {"lock_locks.fence", "lock_waiters.ticket"},
	"work_fence_seq":   {"work_records.fence"},
	"audit_event_seq":  {"audit_events.event_id"},
}

// Convention 12.
func TestAppendOnlyTablesAreKeyedByIds(t *testing.T) {
	t.Parallel()
	const oneRow = "ADR 19: one insert for each, until old ones are archived"
	const few = "definitions: few, and kept for ever"
	exceptions{
		"order_orders": oneRow, "coupon_coupons": oneRow,
		"machine_definitions": few, "machine_moves": few, "notify_template_versions": few,
		"payment_notice_names": "the names of payment_notices",
	}.hold(t, "is append-only, and keyed by text", lines(t, connect(t, pgtest.New(t).SuperDSN), `
		select distinct c.relname::text from pg_trigger g join pg_class c on c.oid = g.tgrelid
		join pg_index i on i.indrelid = c.oid and i.indisprimary
		join pg_attribute a on a.attrelid = c.oid and a.attnum = any(i.indkey) and a.atttypid = 'text'::regtype
		where g.tgname = c.relname || '_append_only' and not c.relispartition`))
}

// Convention 6.
func TestNumbersComeFromBatchesOrRegisteredSequences(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.New(t).SuperDSN)
	for _, column := range lines(t, conn, `select a.attrelid::regclass || '.' || a.attname from pg_attribute a
		join pg_class c on c.oid = a.attrelid left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
		where c.relnamespace = 'public'::regnamespace and c.relname not like 'goose%'
			and (a.attidentity <> '' or pg_get_expr(d.adbin, d.adrelid) like '%nextval%')`) {
		t.Errorf("%s has an identity or the default of a sequence", column)
	}
	documented := read(t, "../docs/engine.md")
	sequences := lines(t, conn, `select relname::text from pg_class
		where relnamespace = 'public'::regnamespace and relkind = 'S' and relname not like 'goose%'`)
	for _, sequence := range sequences {
		if rising[sequence] == nil || !strings.Contains(documented, "`"+sequence+"`") {
			t.Errorf("%s is not registered here and in docs/engine.md", sequence)
		}
	}
	drawn := map[string]bool{}
	for _, s := range statements(t) {
		if _, rest, ok := strings.Cut(s.text, "nextval('"); ok {
			sequence, _, _ := strings.Cut(rest, "'")
			drawn[sequence] = true
			if !strings.Contains(s.text, "commit_base()") || !strings.Contains(s.text, " + nextval(") {
				t.Errorf("%s draws numbers of %s that a failover may give out again: add commit_base()",
					s.name, sequence)
			}
		}
	}
	for sequence := range rising {
		if !drawn[sequence] {
			t.Errorf("no statement draws numbers of %s", sequence)
		}
	}
	columns := lines(t, conn, `select c.relname || '.' || a.attname from pg_attribute a
		join pg_class c on c.oid = a.attrelid
		where c.relnamespace = 'public'::regnamespace and a.atttypid = 'bigint'::regtype`)
	for sequence, all := range rising {
		if !slices.Contains(sequences, sequence) {
			t.Errorf("%s is registered, and does not exist", sequence)
		}
		for _, column := range all {
			if !slices.Contains(columns, column) {
				t.Errorf("%s is registered for %s, which does not exist", column, sequence)
			}
		}
	}
}

var commitOrder = regexp.MustCompile(`\border by [^;)]*\bxid\b|\bxid\b\s*[,)]?\s*[<>]`)

// Convention 7.
func TestPositionsInTheOrderOfCommitsBeginWithTheEpoch(t *testing.T) {
	t.Parallel()
	found := 0
	for _, s := range statements(t) {
		if commitOrder.MatchString(s.text) {
			if found++; !strings.Contains(s.text, "epoch") {
				t.Errorf("%s has positions without an epoch", s.name)
			}
		}
	}
	if found == 0 {
		t.Error("no statement reads commits in order")
	}
	conn := connect(t, pgtest.New(t).SuperDSN)
	for _, index := range lines(t, conn, `select i.relname::text from pg_index x join pg_class i on i.oid = x.indexrelid
		join pg_attribute a on a.attrelid = x.indrelid and a.attnum = any(x.indkey) and a.attname = 'xid'
		join pg_attribute first on first.attrelid = x.indrelid and first.attnum = x.indkey[0]
		where i.relnamespace = 'public'::regnamespace and first.attname <> 'epoch'`) {
		t.Errorf("index %s has positions without an epoch", index)
	}
}

// advisory maps the registered classes of advisory locks, the first of their two numbers, to the second one: a hash of
// the name of the locked object. Every login of the database can take advisory locks, so a lock that many calls or the
// whole service need must be a table lock instead.
var advisory = map[string]string{
	"77003": "hashtext(@name::text",                                                         // the cleaner of a table
	"77016": "hashtext(u.tenant_id::text || '/' || u.message_id::text",                      // reports on a message
	"77017": "hashtext(concat_ws('/', @tenant_id::integer, @segment::smallint, @item::text", // a segment of an item
}

// With sequential scans disabled, the estimated cost of a plan may exceed jit_above_cost. Postgres then compiles the
// plan, which takes 100 ms and more.
func TestScansTurnedOffAreNotCompiled(t *testing.T) {
	t.Parallel()
	found := 0
	for _, file := range sources(t, "queries", "../internal") {
		end := "\n" // in Go, each of these strings is in one line
		if strings.HasSuffix(file, ".sql") {
			end = ";\n"
		}
		for part := range strings.SplitSeq(read(t, file), end) {
			if !seqscanOff.MatchString(part) {
				continue
			}
			found++
			if !jitOff.MatchString(part) {
				t.Errorf("%s turns sequential scans off, and jit not", file)
			}
		}
	}
	if found < 9 {
		t.Errorf("only %d places turn sequential scans off", found)
	}
}

var (
	seqscanOff = regexp.MustCompile(`enable_seqscan(?: = |', ')off`)
	jitOff     = regexp.MustCompile(`\bjit(?: = |', ')off`)
)

var advisoryCall = regexp.MustCompile(`pg_(?:try_)?advisory_(?:xact_)?lock(?:_shared)?\(([^,)]*)(?:, ([^)]*))?`)

// Convention 9.
func TestAdvisoryLocksHaveRegisteredClasses(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, file := range sources(t, ".", "../internal", "../cmd", "../client") {
		for _, m := range advisoryCall.FindAllStringSubmatch(read(t, file), -1) {
			used[m[1]] = true
			if m[1] == "k.number" && file == "queries/lock/key.sql" {
				continue // lock keys of Execute, whose 64-bit numbers docs/locks.md gives to callers
			}
			if advisory[m[1]] == "" || advisory[m[1]] != m[2] {
				t.Errorf("%s: %s) is not registered", file, m[0])
			}
		}
	}
	documented := read(t, "../docs/engine.md")
	for class := range advisory {
		if !used[class] {
			t.Errorf("class %s is registered, and not used", class)
		}
		if !strings.Contains(documented, "| "+class+" |") {
			t.Errorf("class %s is not in docs/engine.md", class)
		}
	}
	conn := connect(t, pgtest.New(t).SuperDSN)
	for _, table := range lines(t, conn, `select oid::regclass::text from pg_class
		where relnamespace = 'public'::regnamespace and relkind in ('r', 'p') and relpersistence <> 'p'`) {
		t.Errorf("%s is not logged", table)
	}
}
