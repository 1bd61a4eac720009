package machine_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// desk is two engines on one database, like two servers.
type desk struct {
	testing.TB
	db      *pgtest.DB
	super   *pgxpool.Pool
	engines [2]*flow.Engine
}

func newDesk(t testing.TB) *desk {
	t.Helper()
	return newDeskOn(t, pgtest.New(t))
}

func newDeskOn(t testing.TB, db *pgtest.DB) *desk {
	t.Helper()
	d := &desk{TB: t, db: db, super: pgtest.Pool(t, db.SuperDSN)}
	for i := range d.engines {
		pool, err := pg.Open(context.Background(), db.AllDSN, 6)
		if err != nil {
			t.Fatal(err)
		}
		e := flow.NewEngine(pool, t.Name(), nil, nil)
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if err := e.Drain(ctx); err != nil {
				t.Error(err)
			}
			pool.Close()
		})
		d.engines[i] = e
	}
	return d
}

var caller = commit.Caller{Tenant: 1, Principal: "test", RequestID: "r"}

// by is the caller with another principal.
func by(principal string) commit.Caller {
	c := caller
	c.Principal = principal
	return c
}

// order is a machine with everything: a timer, a move back, and every restriction on callers.
func order() *machine.Definition {
	return &machine.Definition{
		States: []machine.State{
			{Name: "pending", Label: "待支付", Initial: true,
				Timer: &machine.Timer{AfterMs: 30 * 60 * 1000, To: "cancelled", Reason: "timeout"}},
			{Name: "paid", Label: "已支付"}, {Name: "shipped"}, {Name: "refunding"},
			{Name: "refunded"}, {Name: "cancelled"}, {Name: "settled"}},
		Moves: []machine.Allowed{
			{From: []string{"pending"}, To: "paid"},
			{From: []string{"pending"}, To: "cancelled", By: []machine.Actor{machine.ByCaller, machine.ByTimer}},
			{From: []string{"paid"}, To: "shipped", Principals: []string{"logistics"},
				Require: []string{"tracking_no", machine.ReasonInput}},
			{From: []string{"paid", "shipped"}, To: "refunding"},
			{From: []string{"refunding"}, Back: true},
			{From: []string{"refunding"}, To: "refunded", StayMs: 60 * 60 * 1000},
			{From: []string{"refunding"}, To: "settled", By: []machine.Actor{machine.ByFlow}},
		}}
}

func submission(c flow.Command) flow.Submission {
	return flow.Submission{Tenant: 1, RequestID: "r", Command: c, Rows: 2, Bytes: 400}
}

// all runs commands in one batch, if no other commands are running.
func (d *desk) all(commands ...commit.Command[*machine.Tx]) (ended []string) {
	d.Helper()
	submissions := make([]flow.Submission, len(commands))
	for i, c := range commands {
		submissions[i] = submission(flow.Machine(c))
	}
	for _, r := range d.engines[0].DoAll(context.Background(), submissions) {
		ended = append(ended, describe(r))
	}
	return ended
}

// do runs one command.
func (d *desk) do(c commit.Command[*machine.Tx]) (commit.Outcome, error) {
	d.Helper()
	return d.engines[0].Do(context.Background(), submission(flow.Machine(c)))
}

// describe returns the reason of a failure, or the state and revision of an instance, or the version of a machine.
func describe(r commit.Result) string {
	if f := fault.Of(r.Err); f != nil {
		return f.Reason.Name
	}
	if r.Err != nil {
		return r.Err.Error()
	}
	text := fmt.Sprint(r.Outcome.Answer)
	switch a := r.Outcome.Answer.(type) {
	case machine.Instance:
		text = fmt.Sprintf("%s %d", a.State, a.Revision)
	case machine.Version:
		text = fmt.Sprint("version ", a.Number)
	}
	if r.Outcome.Existed {
		text += " existed"
	}
	return text
}

func (d *desk) want(got []string, want ...string) {
	d.Helper()
	if g, w := strings.Join(got, "; "), strings.Join(want, "; "); g != w {
		d.Errorf("\n got %s\nwant %s", g, w)
	}
}

func define(definition *machine.Definition) *machine.DefineCommand {
	return machine.NewDefine(caller, "parcel", definition)
}

func create(key string, change ...func(*machine.CreateParams)) *machine.CreateCommand {
	p := machine.CreateParams{Machine: "parcel", Key: key}
	for _, f := range change {
		f(&p)
	}
	return &machine.CreateCommand{Caller: caller, CreateParams: p}
}

func move(key, to, cause string, change ...func(*machine.MoveCommand)) *machine.MoveCommand {
	c := &machine.MoveCommand{Caller: caller,
		MoveParams: machine.MoveParams{Machine: "parcel", Key: key, To: to, Cause: cause}}
	for _, f := range change {
		f(c)
	}
	return c
}

func (d *desk) text(query string, args ...any) (s string) {
	d.Helper()
	if err := d.super.QueryRow(context.Background(), query, args...).Scan(&s); err != nil {
		d.Fatal(err)
	}
	return s
}

// history returns the moves of an instance.
func (d *desk) history(key string) string {
	d.Helper()
	return d.text(`select coalesce(string_agg(format('%s %s>%s %s:%s', revision, from_state, to_state, actor, cause),
		', '
		order by revision), '') from machine_history where tenant_id = 1 and machine = 'parcel' and key = $1`, key)
}
