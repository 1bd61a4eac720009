package flow_test

import (
	"context"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/claim"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/lock"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/token"
)

// seats makes submissions for a lock, a first-only claim and a request key, each with a life of a minute.
type seats struct {
	*testing.T
	engine *flow.Engine
}

func (s seats) lock(name, holder string) flow.Submission {
	return submission(flow.Submission{Command: flow.Lock(&lock.AcquireCommand{Caller: commit.Caller{Tenant: 1,
		Principal: holder, RequestID: "r"},
		AcquireParams: lock.AcquireParams{Name: name, Holder: holder, Lease: time.Minute}})})
}

func (s seats) claim(key, owner string) flow.Submission {
	return submission(flow.Submission{Command: flow.Claim(&claim.Command{Caller: caller,
		Params: claim.Params{Scope: "seat", Key: key, Owner: owner, Life: time.Minute, FirstOnly: true}})})
}

// keyed returns a transfer with a request key. Each call has another biz_no, which does not prevent a second effect.
func (s seats) keyed(key, bizNo string) flow.Submission {
	w := submission(flow.Submission{Command: flow.Ledger(transfer(bizNo, key+":from", key+":to", "1"))})
	w.Key = &commit.Key{Principal: "p", Operation: "o", Key: key, Fingerprint: make([]byte, commit.FingerprintSize),
		Life: time.Minute}
	w.Encode = func(a any) ([]byte, error) { return []byte(idOf(a)), nil }
	return w
}

// take acquires all three in one batch.
func (s seats) take(name, owner string) []flow.Submission {
	return []flow.Submission{s.lock(name, owner), s.claim(name, owner), s.keyed(name, name+owner)}
}

// run runs submissions in one batch, and compares their outcomes.
func (s seats) run(what string, submissions []flow.Submission, want ...string) []commit.Result {
	s.Helper()
	results := s.engine.DoAll(context.Background(), submissions)
	for i, r := range results {
		got := ending(r.Outcome, r.Err)
		if r.Outcome.Replayed {
			got = "replayed"
		}
		if got != want[i] {
			s.Errorf("%s: %d ended %s, %v; want %s", what, i, got, r.Err, want[i])
		}
	}
	return results
}

// The clock is set back by ten minutes, and an account in the same batch is ahead of it: no lock, claim or key gets a
// second owner. Then the clock jumps ahead: lives end early, and fences distinguish the owners.
func TestClockSetBackCreatesNoSecondOwner(t *testing.T) {
	t.Parallel()
	d := pgtest.NewDurable(t)
	clock := d.Clock(t)
	clock.Set(10 * time.Minute)
	s := seats{t, engine(t, d.DB)}
	world(t, s.engine, 8)
	held, taken := []string{"LOCK_HELD", "KEY_CLAIMED", "replayed"}, []string{"ok", "ok", "ok"}
	ledgered := func(c commit.Command[*ledger.Tx]) flow.Submission {
		return submission(flow.Submission{Command: flow.Ledger(c)})
	}
	pay := func(bizNo string) flow.Submission { return ledgered(transfer(bizNo, "world", "user:0", "1")) }
	open := func(code string) flow.Submission {
		return ledgered(&ledger.CreateAccountsCommand{Caller: caller,
			Accounts: []ledger.NewAccount{{Code: code, Asset: "CNY", Kind: "liability"}}})
	}
	s.run("accounts", []flow.Submission{open("before:from"), open("before:to")}, "ok", "ok")
	s.run("ten minutes ahead", append(s.take("before", "ann"), pay("future"),
		ledgered(hold("h", "user:0", "user:2", "1", time.Hour))),
		append(taken, "ok", "ok")...)
	form := issue(t, s.engine, token.IssueCommand{})
	clock.Set(0)
	s.run("back", append(s.take("before", "bob"), pay("a"), ledgered(capture("c", "h", "1")),
		submitted(form, "submitted", "world", "1")),
		append(held, "ok", "ok", "ok")...)
	s.run("new accounts", []flow.Submission{open("after:from"), open("after:to")}, "ok", "ok")
	s.run("taken after", s.take("after", "ann"), taken...)
	s.run("in a batch with an account from the future",
		append(s.take("after", "bob"), pay("d"), s.claim("other", "bob"),
			ledgered(hold("i", "user:0", "user:2", "1", time.Hour)), open("new")),
		append(held, "ok", "ok", "ok", "ok")...)
	if lead := s.engine.ClockLead(); lead < 9*time.Minute {
		t.Errorf("rows are %v ahead of the clock", lead)
	}
	super := pgtest.Pool(t, d.SuperDSN)
	if n := text(t, super, `select count(*)::text
		from (select recorded_at, lag(recorded_at) over (partition by account_id order by version) as before
		from ledger_entries) e where recorded_at < before`); n != "0" {
		t.Errorf("%s entries are older than their predecessors", n)
	}

	old := fenceOf(s.run("again", []flow.Submission{s.lock("jump", "ann")}, "ok")[0])
	clock.Set(5 * time.Minute)
	next := fenceOf(s.run("five minutes on", []flow.Submission{s.lock("jump", "bob")}, "ok")[0])
	if next <= old {
		t.Errorf("fence %d after %d", next, old)
	}
	renew := func(holder string, fence int64) flow.Submission {
		return submission(flow.Submission{Command: flow.Lock(&lock.RenewCommand{Caller: commit.Caller{Tenant: 1,
			Principal: holder, RequestID: "r"}, Name: "jump", Fence: fence})})
	}
	s.run("renewals", []flow.Submission{renew("ann", old), renew("bob", next)}, "LOCK_LOST", "ok")
	clock.Set(0)
	s.run("back again", []flow.Submission{renew("ann", old), s.lock("jump", "ann"), renew("bob", next)}, "LOCK_LOST",
		"LOCK_HELD", "ok")
}

func fenceOf(r commit.Result) int64 {
	l, _ := r.Outcome.Answer.(lock.Acquired)
	return l.Lock.Fence
}

// libfaketime passes the machine's time to signal handlers. If the faked clock were ahead of it, no timeout of Postgres
// would fire, so the clock only goes back here, and forward again.
func TestMoneyMovesWhileTheClockJumps(t *testing.T) {
	t.Parallel()
	d := pgtest.NewDurable(t)
	clock := d.Clock(t)
	l := newTransferLoad(t, d.DB)
	for _, at := range []time.Duration{-10 * time.Minute, -5 * time.Minute, -10 * time.Minute, -time.Hour, -time.Second,
		-2 * time.Second, 0} {
		begun := time.Now()
		clock.Set(at)
		l.more("the clock is at " + at.String())
		if took := time.Since(begun); took > 20*time.Second { // one silent round trip: docs/engine.md, "Time"
			t.Errorf("transfers went on %v after the clock was set to %v", took, at)
		}
	}
	l.ready(true)
	l.judge()
}
