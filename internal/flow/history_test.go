package flow_test

import (
	"context"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/claim"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/lock"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/token"
)

// Three submissions of one batch have one biz_no and different content; the second also has a submit token. The faults
// name the transfer that was committed, not one of a rolled-back attempt.
func TestFaultsNameCommittedRowsOnly(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	e := engine(t, db)
	world(t, e, 2)
	form := issue(t, e, token.IssueCommand{})
	results := e.DoAll(context.Background(), []flow.Submission{
		submission(flow.Submission{Command: flow.Ledger(transfer("x", "world", "user:0", "1"))}),
		submitted(form, "x", "world", "2"),
		submission(flow.Submission{Command: flow.Ledger(transfer("x", "world", "user:0", "3"))}),
	})
	id := text(t, pgtest.Pool(t, db.AllDSN), "select transfer_id::text from ledger_transfers where biz_no = 'x'")
	if results[0].Err != nil {
		t.Error(results[0].Err)
	}
	for i, r := range results[1:] {
		if f := fault.Of(r.Err); f == nil || f.Metadata["first_id"] != id {
			t.Errorf("submission %d got %v, the transfer is %s", i+1, r.Err, id)
		}
	}
}

// The clock was an hour ahead at the last entry of an account, and is correct again. In the same batch, a claim, a lock
// and a hold have lives by the clock: each has one owner. An instance created in it has to stay in its state for 1 ms,
// and not for an hour.
func TestAccountFromTheFutureExpiresNothingEarly(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.SkipChecks() // they find the account's time
	super := pgtest.Pool(t, db.SuperDSN)
	e := engine(t, db)
	world(t, e, 8)
	seat := func(owner string) flow.Submission {
		return submission(flow.Submission{Command: flow.Claim(&claim.Command{Caller: caller,
			Params: claim.Params{Scope: "seat", Key: "12A", Owner: owner, Life: 30 * time.Minute, FirstOnly: true}})})
	}
	acquire := func(holder string) flow.Submission {
		return submission(flow.Submission{Command: flow.Lock(&lock.AcquireCommand{Caller: commit.Caller{Tenant: 1,
			Principal: holder, RequestID: "r"},
			AcquireParams: lock.AcquireParams{Name: "job", Holder: holder, Lease: 10 * time.Minute}})})
	}
	pay := func(bizNo, to string) flow.Submission {
		return submission(flow.Submission{Command: flow.Ledger(transfer(bizNo, "world", to, "1"))})
	}
	desk := func(c commit.Command[*machine.Tx]) flow.Submission {
		return submission(flow.Submission{Command: flow.Machine(c)})
	}
	ticket := machine.NewDefine(caller, "ticket", &machine.Definition{
		States: []machine.State{{Name: "open", Initial: true}, {Name: "closed"}},
		Moves:  []machine.Allowed{{From: []string{"open"}, To: "closed", StayMs: 1}}})
	create := &machine.CreateCommand{Caller: caller, CreateParams: machine.CreateParams{Machine: "ticket", Key: "1"}}
	closed := &machine.MoveCommand{Caller: caller,
		MoveParams: machine.MoveParams{Machine: "ticket", Key: "1", To: "closed",
			Cause: "done"}}
	for i, r := range e.DoAll(t.Context(), []flow.Submission{pay("fund", "user:1"), seat("ann"), acquire("ann"),
		desk(ticket),
		submission(flow.Submission{Command: flow.Ledger(hold("h", "user:1", "user:2", "1", 30*time.Minute))})}) {
		if r.Err != nil {
			t.Fatal(i, r.Err)
		}
	}
	if _, err := super.Exec(t.Context(),
		"update ledger_accounts set last_entry_at = now() + interval '1 hour' where code = 'user:7'"); err != nil {
		t.Fatal(err)
	}
	rs := e.DoAll(t.Context(), []flow.Submission{pay("t", "user:7"), seat("bob"), acquire("bob"), pay("u", "user:1"),
		desk(create)})
	if rs[0].Err != nil || rs[3].Err != nil || !fault.Is(rs[1].Err, claim.KeyClaimed) ||
		!fault.Is(rs[2].Err, lock.Held) {
		t.Errorf("%+v", rs)
	}
	for start := time.Now(); ; {
		r := e.DoAll(t.Context(), []flow.Submission{desk(closed)})[0]
		if tooEarly := fault.Is(r.Err, machine.TooEarly); rs[4].Err != nil || r.Err != nil && !tooEarly ||
			tooEarly && time.Since(start) > 10*time.Second {
			t.Errorf("the instance: %v, %v", rs[4].Err, r.Err)
		}
		if !fault.Is(r.Err, machine.TooEarly) || time.Since(start) > 10*time.Second {
			break
		}
	}
	if got := text(t, super, "select state from ledger_holds where biz_no = 'h'"); got != "held" {
		t.Errorf("the hold of 30 minutes is %s", got)
	}
	if got := text(t, super, "select (min(recorded_at) > now() + interval '59 min')::text from ledger_entries e "+
		"join ledger_accounts a using (tenant_id, account_id) where a.code = 'user:7'"); got != "true" {
		t.Error("the account's history went back")
	}
	if lead := e.ClockLead(); lead < 59*time.Minute {
		t.Errorf("rows are %v ahead of the clock", lead)
	}
}
