package flow_test

import (
	"context"
	"testing"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// The entries of one transfer do not add up to 0 when they reach the database. It fails alone.
func TestUnbalancedTransferFailsAlone(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	e := engine(t, db)
	world(t, e, 4)
	if _, err := pgtest.Pool(t, db.SuperDSN).Exec(t.Context(), `create function skew() returns trigger language
		plpgsql as $$ begin
		if new.amount = 777 then new.amount := 778; new.balance_after := new.balance_after + 1; end if; return new; end
		$$;
		create trigger skew before insert on ledger_entries for each row execute function skew()`); err != nil {
		t.Fatal(err)
	}
	var all []flow.Submission
	for i, n := range []string{"1", "2", "7.77", "3"} {
		all = append(all, submission(flow.Submission{Command: flow.Ledger(transfer("t"+n, "world", user(i), n))}))
	}
	for i, r := range e.DoAll(context.Background(), all) {
		if bad := fault.Is(r.Err, fault.InternalError); bad != (i == 2) || r.Err != nil && !bad {
			t.Errorf("%d: %v", i, r.Err)
		}
	}
}
