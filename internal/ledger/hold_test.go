package ledger

import (
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

func to(code string) func(*CaptureParams) { return func(p *CaptureParams) { p.To = code } }
func restReleased(p *CaptureParams)       { p.ReleaseRest = true }

// looks compares a hold's state and amounts.
func looks(t *testing.T, h *Hold, state, captured, remaining string) {
	t.Helper()
	if h.State != state || h.Captured != units(captured) || h.Remaining() != units(remaining) ||
		h.ClosedAt.IsZero() != (state == Held) {
		t.Errorf("hold is %s, captured %s, remaining %s, closed at %v; want %s, %s, %s", h.State, h.Captured,
			h.Remaining(), h.ClosedAt,
			state, captured, remaining)
	}
}

func TestHoldReducesTheAvailableBalance(t *testing.T) {
	p := newTown(t)
	h := p.must(hold("h", "ann", "bob", "60")).(*Hold)
	looks(t, h, Held, "0", "60")
	if !h.ExpiresAt.Equal(noon.Add(time.Hour)) || !h.CreatedAt.Equal(noon) {
		t.Errorf("expires at %v, created at %v", h.ExpiresAt, h.CreatedAt)
	}
	p.stands("ann 100.00 60.00 0") // a hold makes no entries
	p.refused(InsufficientFunds, move("x", post("ann", "cid", "40.01")))
	p.refused(InsufficientFunds, hold("i", "ann", "", "40.01"))
	p.must(hold("i", "ann", "", "up to 50"))
	p.stands("ann 100.00 100.00 0")
	p.refused(InsufficientFunds, hold("j", "ann", "", "all"))
	p.must(move("x", post("bob", "ann", "1")))
	p.must(move("y", post("ann", "cid", "all")))
	p.stands("ann 100.00 100.00 2", "cid 1.00 0.00 1")
}

func TestHoldIsRefusedForTheFirstReasonInTheDocumentedOrder(t *testing.T) {
	tests := []struct {
		name string
		c    *HoldCommand
		want *fault.Reason
	}{
		{"biz_no before account", hold("taken", "nobody", "", "1"), BizNoExistsDifferent},
		{"account not found", hold("x", "nobody", "", "1"), AccountNotFound},
		{"destination not found", hold("x", "ann", "nobody", "1"), AccountNotFound},
		{"destination before precision", hold("x", "ann", "nobody", "0.001"), AccountNotFound},
		{"too precise before closed", hold("x", "closed", "", "0.001"), amount.TooPrecise},
		{"too large", hold("x", "ann", "", "12345678901234567890123456789012345678"), amount.TooLarge},
		{"closed", hold("x", "closed", "", "1"), AccountClosed},
		{"closed before all of nothing", hold("x", "closed", "", "all"), AccountClosed},
		{"frozen", hold("x", "frozen", "", "1"), AccountFrozen},
		{"frozen before all of nothing", hold("x", "broke-frozen", "", "all"), AccountFrozen},
		{"too little", hold("x", "ann", "", "100.01"), InsufficientFunds},
		{"too little beside what is held", hold("x", "keeping", "", "2.01"), InsufficientFunds},
		{"up to of nothing", hold("x", "cid", "", "up to 1"), InsufficientFunds},
		{"all without a least balance", hold("x", "world", "", "all"), AvailableUnbounded},
		{"held of 38 digits", hold("x", "heavy", "", "0.01"), amount.TooLarge},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := oddTown(t)
			p.give("heavy", "0", unbounded,
				func(a *Account) { a.Held = units("999999999999999999999999999999999999.99") })
			p.must(hold("taken", "bob", "", "1"))
			p.refused(test.want, test.c)
		})
	}
}

func TestCapturePaysInPartsAndToOtherAccounts(t *testing.T) {
	p := newTown(t)
	p.must(hold("h", "ann", "bob", "60"))
	got := p.must(capture("c1", "h", "10")).(Capture)
	looks(t, got.Hold, Held, "10", "50")
	if e := got.Transfer.Entries; len(e) != 2 || e[0].Account != "ann" || e[0].Amount != units("-10") ||
		e[1].Account != "bob" ||
		got.Transfer.HoldID != got.Hold.ID {
		t.Errorf("transfer %+v", got.Transfer)
	}
	p.stands("ann 90.00 50.00 1", "bob 110.00 0.00 1")
	if f := p.refused(CaptureExceedsHold, capture("c2", "h", "50.01")); f.Metadata["remaining"] != "50.00" {
		t.Errorf("state %v", f.Metadata)
	}
	looks(t, p.must(capture("c2", "h", "20", to("cid"))).(Capture).Hold, Held, "30", "30")
	p.stands("ann 70.00 30.00 2", "cid 20.00 0.00 1")
	looks(t, p.must(capture("c3", "h", "")).(Capture).Hold, Captured, "60", "0")
	p.stands("ann 40.00 0.00 3", "bob 140.00 0.00 2")
	if f := p.refused(HoldNotHeld, capture("c4", "h", "1")); f.Metadata["state"] != Captured {
		t.Errorf("state %v", f.Metadata)
	}
	p.refused(HoldNotHeld, release("h"))
}

func TestCaptureMayReleaseTheRest(t *testing.T) {
	p := newTown(t)
	p.must(hold("h", "ann", "bob", "60"))
	looks(t, p.must(capture("c", "h", "10", restReleased)).(Capture).Hold, Captured, "10", "0")
	p.stands("ann 90.00 0.00 1", "bob 110.00 0.00 1")
	looks(t, p.existed(capture("c", "h", "10", restReleased)).(Capture).Hold, Captured, "10", "0")
	p.must(hold("i", "ann", "bob", "60"))
	looks(t, p.must(capture("d", "i", "60", restReleased)).(Capture).Hold, Captured, "60", "0")
	p.stands("ann 30.00 0.00 2")
}

func TestCaptureIsRefused(t *testing.T) {
	tests := []struct {
		name string
		c    *CaptureCommand
		want *fault.Reason
	}{
		{"biz_no of another thing before the hold", capture("taken", "none", "1"), BizNoExistsDifferent},
		{"no such hold", capture("x", "none", "1"), HoldNotFound},
		{"no destination", capture("x", "aimless", "1"), DestinationMissing},
		{"to itself", capture("x", "h", "1", to("ann")), fault.FieldInvalid},
		{"destination not found", capture("x", "h", "1", to("nobody")), AccountNotFound},
		{"too precise", capture("x", "h", "0.001"), amount.TooPrecise},
		{"more than remains", capture("x", "h", "60.01"), CaptureExceedsHold},
		{"destination closed", capture("x", "h", "60", to("closed")), AccountClosed},
		{"destination full", capture("x", "h", "60", to("full")), BalanceLimitExceeded},
		{"account frozen", capture("x", "on-frozen", "1"), AccountFrozen},
		{"account frozen, destination closed", capture("x", "on-frozen", "1", to("closed")), AccountClosed},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := oddTown(t)
			p.must(hold("h", "ann", "bob", "60"))
			p.must(hold("aimless", "bob", "", "1"))
			p.give("freezing", "5")
			p.must(hold("on-frozen", "freezing", "bob", "1"))
			p.must(change("freezing", AccountChange{State: Frozen}))
			p.refused(test.want, test.c)
			p.must(release("on-frozen")) // a frozen account's hold can be released
			p.stands("ann 100.00 60.00 2", "freezing 5.00 0.00 0")
		})
	}
}

func TestCaptureNeedsNoAvailableBalance(t *testing.T) {
	p := newTown(t)
	p.must(hold("h", "ann", "bob", "100"))
	p.must(capture("c", "h", "0.01"))
	p.must(capture("d", "h", "99.99"))
	p.stands("ann 0.00 0.00 2", "bob 200.00 0.00 2")
}

func TestReleaseReturnsTheRestAndIsIdempotent(t *testing.T) {
	p := newTown(t)
	p.must(hold("h", "ann", "bob", "60"))
	p.must(capture("c", "h", "10"))
	looks(t, p.must(release("h")).(*Hold), Released, "10", "0")
	p.stands("ann 90.00 0.00 1")
	looks(t, p.existed(release("h")).(*Hold), Released, "10", "0")
	p.refused(HoldNotFound, release("none"))
	if f := p.refused(HoldNotHeld, capture("x", "h", "1")); f.Metadata["state"] != Released {
		t.Errorf("state %v", f.Metadata)
	}
}

func TestTheLaterOfCaptureAndReleaseIsRefused(t *testing.T) {
	p := newTown(t)
	p.must(hold("h", "ann", "bob", "60"))
	p.must(capture("c", "h", "10", restReleased))
	for range 2 {
		if f := p.refused(HoldNotHeld, release("h")); f.Metadata["state"] != Captured {
			t.Errorf("release after capture: state %v", f.Metadata)
		}
	}
	p.must(hold("i", "ann", "bob", "60"))
	p.must(release("i"))
	if f := p.refused(HoldNotHeld, capture("d", "i", "10", restReleased)); f.Metadata["state"] != Released {
		t.Errorf("capture after release: state %v", f.Metadata)
	}
	p.stands("ann 90.00 0.00 1", "bob 110.00 0.00 1")
}

func TestHoldExpiresExactlyAtItsTime(t *testing.T) {
	p := newTown(t)
	p.must(hold("h", "ann", "bob", "60"))
	id := p.must(hold("later", "ann", "bob", "40")).(*Hold).ID
	p.holds[idKey{1, id}].ExpiresAt = noon.Add(2 * time.Hour)
	p.must(capture("before", "h", "10"))

	p.Tick(noon.Add(time.Hour - time.Microsecond))
	p.refused(InsufficientFunds, move("x", post("ann", "cid", "0.01")))
	p.must(capture("just before", "h", "10"))
	p.stands("ann 80.00 80.00 2")

	p.Tick(noon.Add(time.Hour))
	p.stands("ann 80.00 40.00 2") // without an entry, before any command
	f := p.refused(HoldExpired, capture("at", "h", "10"))
	if f.Metadata["state"] != Expired || f.Metadata["expire_time"] != "2026-01-02T13:00:00Z" {
		t.Errorf("state %v", f.Metadata)
	}
	p.refused(HoldExpired, release("h"))
	p.must(move("x", post("ann", "cid", "all")))
	p.stands("ann 40.00 40.00 3")
	looks(t, p.existed(&HoldCommand{Caller: me, HoldParams: hold("h", "ann", "bob", "60").HoldParams}).(*Hold), Expired,
		"20", "0")

	if next := p.Row(AccountKey{1, "ann", "CNY"}).NextExpiryAt; !next.Equal(noon.Add(2 * time.Hour)) {
		t.Errorf("next expiry at %v", next)
	}
	p.Tick(noon.Add(2 * time.Hour))
	p.stands("ann 40.00 0.00 3")
	if next := p.Row(AccountKey{1, "ann", "CNY"}).NextExpiryAt; !next.IsZero() {
		t.Errorf("next expiry at %v", next)
	}
}

func TestNextExpiryIsALowerBound(t *testing.T) {
	p := newTown(t)
	place := func(bizNo string, life time.Duration) {
		c := hold(bizNo, "ann", "bob", "1")
		c.Life = life
		p.must(c)
	}
	place("two", 2*time.Hour)
	place("one", time.Hour)
	place("three", 3*time.Hour)
	next := func() time.Duration { return p.Row(AccountKey{1, "ann", "CNY"}).NextExpiryAt.Sub(noon) }
	if next() != time.Hour {
		t.Errorf("next expiry after %v", next())
	}
	p.must(release("one")) // NextExpiryAt is a lower bound: a release does not raise it
	if next() != time.Hour {
		t.Errorf("next expiry after %v", next())
	}
	p.Tick(noon.Add(time.Hour)) // the time of the lower bound: it is corrected
	if next() != 2*time.Hour {
		t.Errorf("next expiry after %v", next())
	}
	p.refused(InsufficientFunds, hold("x", "cid", "", "1"))
}

func TestHoldCaptureAndReleaseOfOneBatch(t *testing.T) {
	p := newTown(t)
	p.must(hold("h", "ann", "", "60"))
	p.must(capture("c", "h", "10", to("cid"))) // cid is not the hold's destination
	p.must(capture("d", "h", "10", to("bob")))
	p.must(release("h"))
	p.stands("ann 80.00 0.00 2", "bob 110.00 0.00 1", "cid 10.00 0.00 1")
	var rows []*Hold
	for _, h := range p.newHolds {
		rows = append(rows, h.Hold)
	}
	if len(rows) != 1 || !rows[0].fresh {
		t.Fatalf("new holds %+v", rows)
	}
	looks(t, rows[0], Released, "20", "0") // in the state in which it is inserted
}

// A capture learns its destination account from its hold. A hold of the same batch cannot be discovered, so the
// command itself must remember the account for the next run.
func TestCaptureOfAHoldOfTheSameBatchFindsItsDestinationInTheNextRun(t *testing.T) {
	c := capture("c", "h", "10", to("cid"))
	for run := range 2 {
		b := NewTx()
		b.Start(commit.Times{Now: noon, Recorded: noon}, func() int64 { return 1 })
		commands := []interface {
			Need(*Tx)
			Apply(*Tx) (any, error)
		}{hold("h", "ann", "", "60"), c}
		for _, c := range commands {
			c.Need(b)
		}
		for _, a := range b.accountList {
			a.exists, a.State, a.Balance, a.Scale = true, Open, units("100"), 2
		}
		for i, c := range commands {
			if _, err := c.Apply(b); (err != nil) != (run == 0 && i == 1) {
				t.Fatalf("run %d: %v", run, err)
			}
		}
	}
}
