package ledger

import (
	"fmt"
	"testing"

	"github.com/ledgerd/ledgerd/internal/fault"
)

func TestReversePostsTheOppositeInReverseOrder(t *testing.T) {
	p := newTown(t)
	first := p.must(move("t", post("ann", "cid", "30"), post("cid", "bob", "all"))).(*Transfer)
	got := p.must(reverse("r", "t")).(*Transfer)
	p.stands("ann 100.00 0.00 2", "bob 100.00 0.00 2", "cid 0.00 0.00 4")
	want := []string{"bob", "cid", "cid", "ann"} // cid must be credited before it pays
	for i, e := range got.Entries {
		if e.Account != want[i] || int(e.Posting) != i/2 || e.Amount != units([]string{"-30", "30"}[i%2]) {
			t.Errorf("entry %d: %+v", i, e)
		}
	}
	if got.ReversesID != first.ID || first.ReversedByID != got.ID || got.Type != Reversal {
		t.Errorf("reversal %+v of %+v", got, first)
	}
}

func TestTransferIsReversedOnce(t *testing.T) {
	p := newTown(t)
	id := p.must(move("t", post("ann", "bob", "30"))).(*Transfer).ID
	by := p.must(reverse("r", "t")).(*Transfer)
	if f := p.refused(AlreadyReversed, reverse("s", "t")); f.Metadata["reversed_by_id"] != fmt.Sprint(by.ID) {
		t.Errorf("state %v", f.Metadata)
	}
	p.refused(AlreadyReversed, &ReverseCommand{Caller: me, ReverseParams: ReverseParams{TransferID: id, BizNo: "u"}})
	if again := p.existed(reverse("r", "t")).(*Transfer); again != by {
		t.Errorf("repeat %+v", again)
	}
	p.stands("ann 100.00 0.00 2", "bob 100.00 0.00 2")
	p.must(reverse("rr", "r")) // a reversal can be reversed
	p.stands("ann 70.00 0.00 3", "bob 130.00 0.00 3")
}

func TestReversalOfACaptureLeavesTheHold(t *testing.T) {
	p := newTown(t)
	p.must(hold("h", "ann", "bob", "60"))
	p.must(capture("c", "h", "10"))
	got := p.must(reverse("r", "c")).(*Transfer)
	if got.HoldID != 0 {
		t.Errorf("hold id %d", got.HoldID)
	}
	p.stands("ann 100.00 50.00 2", "bob 100.00 0.00 2")
	looks(t, p.must(release("h")).(*Hold), Released, "10", "0")
}

func TestReverseIsRefused(t *testing.T) {
	tests := []struct {
		name    string
		prepare []*UpdateAccountCommand
		move    *TransferCommand
		c       *ReverseCommand
		want    *fault.Reason
	}{
		{"no such transfer", nil, nil, reverse("x", "none"), TransferNotFound},
		{"no such id", nil, nil, &ReverseCommand{Caller: me, ReverseParams: ReverseParams{TransferID: 999, BizNo: "x"}},
			TransferNotFound},
		{"biz_no of another thing before the target", nil, nil, reverse("t", "none"), BizNoExistsDifferent},
		{"of itself", nil, nil, reverse("x", "x"), TransferNotFound},
		{"the money is gone", nil, move("u", post("cid", "bob", "30")), reverse("x", "t"), InsufficientFunds},
		{"payee frozen", []*UpdateAccountCommand{change("cid", AccountChange{State: Frozen})}, nil, reverse("x", "t"),
			AccountFrozen},
		{"payer closed", []*UpdateAccountCommand{change("ann", AccountChange{State: Closed})},
			move("u", post("bob", "world", "1")), reverse("x", "t"), AccountClosed},
		{"payer full", []*UpdateAccountCommand{change("ann", AccountChange{Max: decOf("5")})}, nil, reverse("x", "t"),
			BalanceLimitExceeded},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := newTown(t)
			p.must(move("drain", post("ann", "world", "70")))
			p.must(move("t", post("ann", "cid", "30")))
			for _, c := range test.prepare {
				p.must(c)
			}
			if test.move != nil {
				p.must(test.move)
			}
			p.refused(test.want, test.c)
			if p.transferNames[nameKey{1, "t"}].t.ReversedByID != 0 {
				t.Error("the transfer is marked as reversed")
			}
		})
	}
}
