package claim_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/claim"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestUsesAreCountedAndReportTheFirst(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	first := d.all(flow.Claim(use(by("r1"), "k", time.Minute, owner("a"),
		result("order-1"))))[0].Outcome.Answer.(claim.Use)
	if first.Count != 1 || first.Existed || first.First.ID == 0 ||
		!first.First.ExpiresAt.Equal(first.First.ClaimedAt.Add(time.Minute)) {
		t.Fatalf("%+v", first)
	}
	for n := int64(2); n < 5; n++ {
		u := d.all(flow.Claim(use(by("r2"), "k", time.Hour, owner("b"),
			result("order-2"))))[0].Outcome.Answer.(claim.Use)
		if u.Count != n || !u.Existed || u.First.Owner != "a" || u.First.Result != "order-1" ||
			u.First.RequestID != "r1" ||
			u.First.ID != first.First.ID || !u.First.ClaimedAt.Equal(first.First.ClaimedAt) ||
			!u.First.ExpiresAt.Equal(first.First.ExpiresAt) {
			t.Errorf("%+v", u)
		}
	}
	d.want(d.use(use(caller, "other", time.Minute)), "1")
	d.want(d.use(use(caller, "k", time.Minute, func(p *claim.Params) { p.Scope += "2" })), "1")
	stranger := caller
	stranger.Tenant = 2
	of := submission(flow.Claim(use(stranger, "k", time.Minute)))
	of.Tenant = stranger.Tenant
	d.want(ended(d.engines[0].DoAll(t.Context(), []flow.Submission{of})[0]), "1")
}

func TestRepeatsDoNotExtendALifeAndAnExpiredKeyIsFree(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.want(d.use(use(by("r1"), "k", time.Minute, owner("a"), parts("x", "y"))), "1")
	d.age(40 * time.Second)
	d.want(d.use(use(caller, "k", time.Minute, parts("x", "y"))), "2 existed")
	d.age(19 * time.Second)
	d.want(d.use(use(caller, "k", time.Minute, parts("x", "y"), firstOnly)), "KEY_CLAIMED")
	d.age(2 * time.Second)
	u := d.all(flow.Claim(use(by("r2"), "k", time.Hour, parts("x", "y"),
		result("second"))))[0].Outcome.Answer.(claim.Use)
	if u.Count != 1 || u.Existed || u.First.Owner != "" || u.First.Result != "second" || u.First.RequestID != "r2" {
		t.Errorf("%+v", u)
	}
	d.age(time.Hour)
	// A key whose life is over may then be claimed forever.
	d.want(d.use(use(caller, "k", 0, parts("x", "y"), owner("c"))), "1")
	d.age(1000 * time.Hour)
	d.want(d.use(use(caller, "k", 0, parts("x", "y"), owner("d"))), "KEY_CLAIMED")
}

func TestAKeyWithoutALifeBelongsToItsOwnerForEver(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.want(d.use(use(by("r1"), "phone", 0, owner("a"), result("user-1"))), "1")
	again := d.all(flow.Claim(use(by("r2"), "phone", 0, owner("a"), result("user-2"))))[0]
	if u := again.Outcome.Answer.(claim.Use); !again.Outcome.Existed || !u.Existed || u.Count != 1 ||
		u.First.Result != "user-1" || u.First.RequestID != "r1" {
		t.Errorf("%+v", again)
	}
	f := fault.Of(d.all(flow.Claim(use(by("r3"), "phone", 0, owner("b"))))[0].Err)
	if f == nil || f.Reason != claim.KeyClaimed || f.Metadata["owner"] != "a" || f.Metadata["result"] != "user-1" ||
		f.Metadata["first_request_id"] != "r1" ||
		f.Metadata["count"] != "1" || f.Metadata["first_time"] == "" || f.Metadata["expire_time"] != "" {
		t.Errorf("%+v", f)
	}
	d.want(d.use(use(caller, "phone", 0)), "KEY_CLAIMED")
	d.want(d.use(use(caller, "phone", 0, owner("a"), firstOnly)), "KEY_CLAIMED")
	d.want(d.use(use(caller, "phone", time.Minute, owner("a"))), "CLAIM_LIFE_DIFFERENT")
	d.want(d.use(use(caller, "page", time.Minute, owner("a"))), "1")
	d.want(d.use(use(caller, "page", 0, owner("a"))), "CLAIM_LIFE_DIFFERENT")
	d.want(d.text("select string_agg(key || ' ' || uses, ', ' order by key) from claim_keys"), "page 1, phone 1")
}

func TestARefusedUseIsNotCounted(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.want(d.use(use(caller, "k", time.Minute, firstOnly)), "1")
	for range 3 {
		d.want(d.use(use(caller, "k", time.Minute, firstOnly)), "KEY_CLAIMED")
	}
	d.want(d.use(use(caller, "k", time.Minute)), "2 existed")
	f := fault.Of(d.all(flow.Claim(use(caller, "k", time.Minute, firstOnly)))[0].Err)
	if f.Metadata["count"] != "2" || f.Metadata["expire_time"] == "" {
		t.Errorf("%+v", f)
	}
}

func drop(key string, p claim.DropParams) flow.Command {
	p.Scope, p.Key = "s", key
	return flow.Claim(&claim.DropCommand{Caller: caller, Params: p})
}

func TestOnlyTheOwnerOrTheFenceFreesAKey(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	one := func(c flow.Command) string { return ended(d.all(c)[0]) }
	d.want(one(drop("k", claim.DropParams{Owner: "a"})), "false")
	fence := d.all(flow.Claim(use(caller, "k", time.Minute, owner("a"))))[0].Outcome.Answer.(claim.Use).First.ID
	d.want(one(drop("k", claim.DropParams{Owner: "b"})), "CLAIM_FOREIGN")
	d.want(one(drop("k", claim.DropParams{Owner: "b", Fence: fence})), "CLAIM_FOREIGN")
	d.want(one(drop("k", claim.DropParams{})), "CLAIM_FOREIGN")
	d.want(one(drop("k", claim.DropParams{Fence: fence + 1})), "false")
	d.want(d.use(use(caller, "k", time.Minute, firstOnly)), "KEY_CLAIMED")
	d.want(one(drop("k", claim.DropParams{Fence: fence})), "true")
	d.want(one(drop("k", claim.DropParams{Fence: fence})), "false")
	// The next claim has a new fence: the old fence cannot delete it.
	d.want(d.use(use(caller, "k", time.Minute, owner("c"), firstOnly)), "1")
	d.want(one(drop("k", claim.DropParams{Fence: fence})), "false")
	d.want(one(drop("k", claim.DropParams{Fence: fence, Owner: "a"})), "false")
	d.want(one(drop("k", claim.DropParams{Owner: "c"})), "true")
	// A claim without an owner needs its fence, and an expired claim is already gone.
	fence = d.all(flow.Claim(use(caller, "k", time.Minute)))[0].Outcome.Answer.(claim.Use).First.ID
	d.want(one(drop("k", claim.DropParams{Owner: "c"})), "CLAIM_FOREIGN")
	d.age(time.Hour)
	d.want(one(drop("k", claim.DropParams{Fence: fence})), "false")
}

func TestCommandsOfOneBatchSeeEachOther(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.want(d.use(use(caller, "old", time.Minute, owner("a"))), "1")
	d.want(d.use(use(caller, "gone", time.Minute, owner("a"))), "1")
	var got []string
	for _, r := range d.all(
		flow.Claim(use(caller, "new", time.Minute, owner("a"))), flow.Claim(use(caller, "new", time.Minute, firstOnly)),
		// inserted with two uses
		flow.Claim(use(caller, "new", time.Minute)),
		// never stored
		flow.Claim(use(caller, "made", time.Minute, owner("a"))), drop("made", claim.DropParams{Owner: "a"}),
		drop("old", claim.DropParams{Owner: "a"}), flow.Claim(use(caller, "old", 0, owner("b"))), // renewed
		flow.Claim(use(caller, "old", 0, owner("a"))),
		flow.Claim(use(caller, "gone", time.Minute)), drop("gone", claim.DropParams{Owner: "a"}),
	) {
		got = append(got, ended(r))
	}
	d.want(strings.Join(got, "; "), "1; KEY_CLAIMED; 2 existed; 1; true; true; 1; KEY_CLAIMED; 2 existed; true")
	d.want(d.text("select string_agg(format('%s %s %s %s', key, owner, uses, expires_at is null), '; ' order by key) "+
		"from claim_keys"), "new a 2 f; old b 1 t")
	d.want(d.text("select count(*)::text from commit_batches where commands = 10"), "1")
}

func TestEachOfSeveralKeysSucceedsOrFailsAlone(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.want(d.use(use(by("first"), "taken", time.Minute, owner("a"))), "1")
	d.want(d.use(use(caller, "fact", 0)), "1")
	each := &claim.EachCommand{Caller: caller}
	for _, c := range []*claim.Command{use(caller, "x", time.Minute), use(caller, "taken", time.Minute, firstOnly),
		use(caller, "x", time.Minute),
		use(caller, "fact", time.Minute), use(caller, "x", time.Minute, func(p *claim.Params) { p.Scope = "other" }),
		use(caller, "taken", time.Minute)} {
		each.Params = append(each.Params, c.Params)
	}
	var got []string
	for _, r := range d.all(flow.Claim(each))[0].Outcome.Answer.([]claim.Result) {
		if r.Fault != nil {
			got = append(got, r.Fault.Reason.Name+" "+r.First.RequestID)
			continue
		}
		got = append(got, ended(commit.Result{Outcome: commit.Outcome{Answer: r.Use}}))
	}
	d.want(strings.Join(got, "; "), "1; KEY_CLAIMED first; 2 existed; CLAIM_LIFE_DIFFERENT ; 1; 2 existed")
	d.want(d.text("select string_agg(key || ' ' || uses, '; ' order by key) from claim_keys where scope = 's'"),
		"fact 1; taken 2; x 2")
	d.want(d.text("select string_agg(key || ' ' || uses, '; ' order by key) from claim_keys where scope <> 's'"), "x 1")
}

func TestPartsMakeOneKeyAndAreKept(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	within := claim.Rule{Name: "purchase", Life: 5 * time.Minute}
	ruled := func(r claim.Rule, list ...string) *claim.Command {
		return &claim.Command{Caller: caller, Params: r.Params(list...)}
	}
	d.want(d.use(ruled(within, "u1", "p,1:2")), "1")
	d.want(d.use(ruled(within, "u1,", "p1:2")), "1")
	d.want(d.use(ruled(within, "u1", "p,1:2")), "2 existed")
	within.Refuse = true
	d.want(d.use(ruled(within, "u1", "p,1:2")), "KEY_CLAIMED")
	d.age(5*time.Minute + time.Second)
	d.want(d.use(ruled(within, "u1", "p,1:2")), "1")
	d.want(d.text("select key || ' ' || parts::text from audit.claims where uses = 1 and not expired"),
		`2:u1,5:p,1:2, ["u1", "p,1:2"]`)
	d.want(d.text("select count(*)::text from audit.claims where expired"), "1")
}

func TestDifferentPartsGiveDifferentKeys(t *testing.T) {
	list := rapid.SliceOf(rapid.StringMatching(`[0-9:,a"é]{0,4}`))
	rapid.Check(t, func(t *rapid.T) {
		a, b := list.Draw(t, "a"), list.Draw(t, "b")
		same := len(a) == len(b)
		for i := 0; same && i < len(a); i++ {
			same = a[i] == b[i]
		}
		if (claim.Compose(a) == claim.Compose(b)) != same {
			t.Fatalf("%q and %q: %q", a, b, claim.Compose(a))
		}
	})
}

func TestScopesHaveDefaultLives(t *testing.T) {
	for scope, want := range map[string]time.Duration{"page": 10 * time.Minute, "purchase": 5 * time.Minute, "phone": 0,
		"pages": 0} {
		if got := claim.DefaultLife(scope); got != want {
			t.Errorf("%s: %v", scope, got)
		}
	}
}

func TestReaderShowsWhatIsClaimedNow(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	r := claim.NewReader(d.super)
	k := claim.Key{Tenant: 1, Scope: "s", Key: claim.Compose([]string{"a", "b"})}
	if _, err := r.Claim(context.Background(), k); !fault.Is(err, claim.NotFound) {
		t.Error(err)
	}
	d.want(d.use(use(by("r1"), "", time.Minute, parts("a", "b"), owner("o"), result("x"))), "1")
	d.want(d.use(use(by("r2"), "", time.Minute, parts("a", "b"))), "2 existed")
	c, err := r.Claim(context.Background(), k)
	if err != nil || c.Uses != 2 || c.Owner != "o" || c.Result != "x" || c.RequestID != "r1" ||
		strings.Join(c.Parts, " ") != "a b" || c.ID == 0 {
		t.Errorf("%+v, %v", c, err)
	}
	k.Tenant = 2
	if _, err := r.Claim(context.Background(), k); !fault.Is(err, claim.NotFound) {
		t.Error(err)
	}
	k.Tenant = 1
	d.age(time.Hour)
	if _, err := r.Claim(context.Background(), k); !fault.Is(err, claim.NotFound) {
		t.Error(err)
	}
}

func TestCleanersDeleteOnlyExpiredClaims(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	const n = 2300
	if _, err := d.super.Exec(context.Background(), `insert into claim_keys (tenant_id, scope, key, claim_id, uses,
		principal, request_id, claimed_at, expires_at)
		select 1, 's', 'old' || i, 1, 1, 'p', 'r', now() - interval '2 h', now() - interval '1 h'
		from generate_series(1, $1::int) i`, n); err != nil {
		t.Fatal(err)
	}
	d.want(d.use(use(caller, "lives", time.Minute)), "1")
	d.want(d.use(use(caller, "fact", 0)), "1")
	d.want(d.use(use(caller, "old7", time.Minute)), "1") // claimed again before the cleaner runs
	if deleted := cleanAll(t, d.app); deleted != n-1 {
		t.Errorf("deleted %d", deleted)
	}
	d.want(d.text("select string_agg(key, ' ' order by key) from claim_keys"), "fact lives old7")
}

func TestClaimsSurviveACrashOfPostgres(t *testing.T) {
	if testing.Short() {
		t.Skip()
	}
	t.Parallel()
	db := pgtest.NewDurable(t)
	e := newEngine(t, db.AllDSN, nil)
	do := func(c *claim.Command) string {
		var r commit.Result
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		r.Outcome, r.Err = e.Do(ctx, submission(flow.Claim(c)))
		return ended(r)
	}
	if got := do(use(caller, "k", time.Hour)); got != "1" {
		t.Fatal(got)
	}
	db.Server.Kill()
	db.Restart(t)
	if got := do(use(caller, "k", time.Hour)); got != "2 existed" {
		t.Errorf("after the crash: %s", got)
	}
}
