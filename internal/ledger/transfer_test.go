package ledger

import (
	"fmt"
	"testing"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/fault"
)

func TestTransferMakesTwoEntriesAPostingDebitFirst(t *testing.T) {
	p := newTown(t)
	got := p.must(move("t", post("ann", "bob", "1.5"), post("bob", "cid", "2"))).(*Transfer)
	want := []string{
		"ann v1 -1.50: 100.00 to 98.50, posting 0", "bob v1 1.50: 100.00 to 101.50, posting 0",
		"bob v2 -2.00: 101.50 to 99.50, posting 1", "cid v1 2.00: 0.00 to 2.00, posting 1",
	}
	if len(got.Entries) != len(want) {
		t.Fatalf("entries %+v", got.Entries)
	}
	for i, e := range got.Entries {
		line := fmt.Sprintf("%s v%d %s: %s to %s, posting %d", e.Account, e.Version, amount.Format(e.Amount, e.Scale),
			amount.Format(e.Before, e.Scale), amount.Format(e.After, e.Scale), e.Posting)
		if line != want[i] || e.TransferID != got.ID || !e.RecordedAt.Equal(noon) {
			t.Errorf("entry %d: %s, want %s", i, line, want[i])
		}
	}
	p.stands("ann 98.50 0.00 1", "bob 99.50 0.00 2", "cid 2.00 0.00 1")
	if a := p.Row(AccountKey{1, "bob", "CNY"}); !a.LastEntryAt.Equal(noon) {
		t.Errorf("last entry at %v", a.LastEntryAt)
	}
}

// oddTown is newTown with accounts that provoke each refusal.
func oddTown(t *testing.T) *Paper {
	p := newTown(t)
	p.give("frozen", "10", state(Frozen))
	p.give("broke-frozen", "0", state(Frozen))
	p.give("closed", "0", state(Closed))
	p.give("full", "90", most("100"))
	p.give("credit", "0", least("-50"))
	p.give("keeping", "10", func(a *Account) { a.Held = units("8") })
	p.give("full-frozen", "90", most("100"), state(Frozen))
	p.give("rich", "500000000000000000000000000000000000.00", unbounded)
	p.give("richest", "999999999999999999999999999999999999.99")
	p.give("poorest", "-999999999999999999999999999999999999.99", unbounded)
	p.give("deep", "500000000000000000000000000000000000.00", least("-600000000000000000000000000000000000.00"))
	p.must(move("taken", post("ann", "bob", "1")))
	p.must(move("back", post("bob", "ann", "1")))
	return p
}

func on(code string, version int64, atLeast string) Condition {
	k := Condition{Code: code, Asset: "CNY"}
	if version >= 0 {
		k.Version = &version
	}
	if atLeast != "" {
		k.BalanceAtLeast = decOf(atLeast)
	}
	return k
}

func (c *TransferCommand) when(k ...Condition) *TransferCommand {
	c.Conditions = k
	return c
}

func TestTransferIsRefusedForTheFirstReasonInTheDocumentedOrder(t *testing.T) {
	const none = int64(-1)
	tests := []struct {
		name string
		c    *TransferCommand
		want *fault.Reason
	}{
		{"biz_no before account", move("taken", post("nobody", "bob", "1")), BizNoExistsDifferent},
		{"payer not found", move("x", post("nobody", "bob", "1")), AccountNotFound},
		{"payee not found", move("x", post("ann", "nobody", "1")), AccountNotFound},
		{"account of a condition not found", move("x", post("ann", "bob", "1")).when(on("nobody", 1, "")),
			AccountNotFound},
		{"account of a later posting before precision",
			move("x", post("ann", "bob", "1.001"), post("ann", "nobody", "1")), AccountNotFound},
		{"too precise", move("x", post("ann", "bob", "1.001")), amount.TooPrecise},
		{"too precise up to", move("x", post("ann", "bob", "up to 1.001")), amount.TooPrecise},
		{"later posting too precise before conditions",
			move("x", post("ann", "bob", "1"), post("ann", "bob", "1.001")).when(on("ann", 99, "")), amount.TooPrecise},
		{"condition too precise before a stale version",
			move("x", post("ann", "bob", "1")).when(on("ann", 99, ""), on("bob", none, "1.001")), amount.TooPrecise},
		{"amount of 39 digits in minor units", move("x", post("ann", "bob", "12345678901234567890123456789012345678")),
			amount.TooLarge},
		{"condition of 39 digits", move("x",
			post("ann", "bob", "1")).when(on("ann", none, "12345678901234567890123456789012345678")), amount.TooLarge},
		{"stale version before a lacking balance",
			move("x", post("ann", "bob", "1")).when(on("bob", none, "1000"), on("ann", 99, "")), StaleVersion},
		{"stale version before a closed account", move("x", post("closed", "bob", "1")).when(on("ann", 99, "")),
			StaleVersion},
		{"lacking balance before a closed account",
			move("x", post("closed", "bob", "1")).when(on("ann", none, "100.01")), BalanceConditionFailed},
		{"both of one condition", move("x", post("ann", "bob", "1")).when(on("ann", 99, "1000")), StaleVersion},
		{"payer closed", move("x", post("closed", "bob", "1")), AccountClosed},
		{"payer closed, all of nothing", move("x", post("closed", "bob", "all")), AccountClosed},
		{"payee closed", move("x", post("ann", "closed", "1")), AccountClosed},
		{"payee closed before payer frozen", move("x", post("frozen", "closed", "1")), AccountClosed},
		{"payee closed before too little", move("x", post("ann", "closed", "1000")), AccountClosed},
		{"payer frozen", move("x", post("frozen", "bob", "1")), AccountFrozen},
		{"payer frozen before too little", move("x", post("frozen", "bob", "11")), AccountFrozen},
		{"payer frozen before all of nothing", move("x", post("broke-frozen", "bob", "all")), AccountFrozen},
		{"payer frozen before payee full", move("x", post("frozen", "full", "10.01")), AccountFrozen},
		{"too little", move("x", post("ann", "bob", "100.01")), InsufficientFunds},
		{"held is not available", move("x", post("keeping", "bob", "2.01")), InsufficientFunds},
		{"below the overdraft", move("x", post("credit", "bob", "50.01")), InsufficientFunds},
		{"up to of nothing", move("x", post("cid", "bob", "up to 1")), InsufficientFunds},
		{"all of nothing", move("x", post("cid", "bob", "all")), InsufficientFunds},
		{"too little before payee full", move("x", post("ann", "full", "100.01")), InsufficientFunds},
		{"far too little", move("x", post("credit", "bob", "999999999999999999999999999999999999.99")),
			InsufficientFunds},
		{"all without a least balance", move("x", post("world", "bob", "all")), AvailableUnbounded},
		{"all that has 39 digits", move("x", post("deep", "bob", "all")), amount.TooLarge},
		{"payee full", move("x", post("ann", "full", "10.01")), BalanceLimitExceeded},
		{"payee far too full", move("x", post("rich", "full", "999999999999999999999999999999999999.99")),
			BalanceLimitExceeded},
		{"frozen payee is full all the same", move("x", post("ann", "full-frozen", "10.01")), BalanceLimitExceeded},
		{"payee of 38 digits", move("x", post("ann", "richest", "0.01")), amount.TooLarge},
		{"payer of -38 digits", move("x", post("poorest", "ann", "0.01")), amount.TooLarge},
		{"first posting before the second", move("x", post("ann", "full", "10.01"), post("closed", "bob", "1")),
			BalanceLimitExceeded},
		{"second posting", move("x", post("ann", "bob", "1"), post("frozen", "bob", "1")), AccountFrozen},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { oddTown(t).refused(test.want, test.c) })
	}
}

func TestTransferSucceedsUpToEveryBound(t *testing.T) {
	tests := []struct {
		name string
		c    *TransferCommand
		want []string
	}{
		{"all but nothing", move("x", post("ann", "bob", "100")), []string{"ann 0.00 0.00 3", "bob 200.00 0.00 3"}},
		{"beside what is held", move("x", post("keeping", "bob", "2")), []string{"keeping 8.00 8.00 1"}},
		{"all beside what is held", move("x", post("keeping", "bob", "all")),
			[]string{"keeping 8.00 8.00 1", "bob 102.00 0.00 3"}},
		{"the whole overdraft", move("x", post("credit", "bob", "50")), []string{"credit -50.00 0.00 1"}},
		{"all of the overdraft", move("x", post("credit", "bob", "all")), []string{"credit -50.00 0.00 1"}},
		{"up to more than there is", move("x", post("ann", "bob", "up to 100.01")), []string{"ann 0.00 0.00 3"}},
		{"up to less than there is", move("x", post("ann", "bob", "up to 99.99")), []string{"ann 0.01 0.00 3"}},
		{"up to, without a least balance", move("x", post("world", "bob", "up to 5000")),
			[]string{"world -5200.00 0.00 1"}},
		{"up to, where 39 digits are available", move("x", post("deep", "ann", "up to 7")),
			[]string{"ann 107.00 0.00 3"}},
		{"exact, where 39 digits are available", move("x", post("deep", "ann", "7")), []string{"ann 107.00 0.00 3"}},
		{"any depth", move("x", post("world", "bob", "5000")), []string{"world -5200.00 0.00 1"}},
		{"to the brim", move("x", post("ann", "full", "10")), []string{"full 100.00 0.00 1"}},
		{"into a frozen account", move("x", post("ann", "frozen", "1")), []string{"frozen 11.00 0.00 1"}},
		{"the greatest amount", move("x", post("richest", "cid", "999999999999999999999999999999999999.99")),
			[]string{"richest 0.00 0.00 1", "cid 999999999999999999999999999999999999.99 0.00 1"}},
		{"one unit", move("x", post("ann", "bob", "0.01")), []string{"ann 99.99 0.00 3"}},
		{"what the posting before brought", move("x", post("ann", "cid", "5"), post("cid", "bob", "5")),
			[]string{"ann 95.00 0.00 3", "cid 0.00 0.00 2", "bob 105.00 0.00 3"}},
		{"all of what the posting before brought", move("x", post("ann", "cid", "up to 3"), post("cid", "bob", "all")),
			[]string{"ann 97.00 0.00 3", "bob 103.00 0.00 3"}},
		{"conditions that are met", move("x", post("ann", "bob", "1")).when(on("ann", 2, "100"), on("cid", 0, "0"),
			on("world", -1, "-200")),
			[]string{"ann 99.00 0.00 3"}},
		{"conditions look before the postings",
			move("x", post("ann", "bob", "1"), post("ann", "bob", "1")).when(on("ann", 2, "100")),
			[]string{"ann 98.00 0.00 4"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := oddTown(t)
			p.must(test.c)
			p.stands(test.want...)
		})
	}
}

func TestEachPostingMustBeCoveredByItself(t *testing.T) {
	p := newTown(t)
	// in the end cid would have 0 again
	p.refused(InsufficientFunds, move("x", post("cid", "bob", "5"), post("ann", "cid", "5")))
	p.give("full", "90", most("100"))
	p.refused(BalanceLimitExceeded, move("x", post("ann", "full", "11"), post("full", "ann", "11")))
	p.stands("ann 100.00 0.00 0", "bob 100.00 0.00 0", "cid 0.00 0.00 0")
}

func TestTransferOfSeveralAssetsKeepsTheScaleOfEach(t *testing.T) {
	p := newTown(t)
	for _, code := range []string{"ann", "bob"} {
		p.give(code, "0", of("ETH"), func(a *Account) { a.Scale, a.Balance = 18, amount.FromInt64(3e18) })
		p.give(code, "0", of("JPY"), func(a *Account) { a.Scale, a.Balance = 0, amount.FromInt64(5) })
	}
	eth := Posting{From: "bob", To: "ann", Asset: "ETH", Amount: dec("0.000000000000000001")}
	yen := Posting{From: "bob", To: "ann", Asset: "JPY", Amount: dec("5.0")}
	p.must(move("x", post("ann", "bob", "12.30"), eth, yen))
	for key, want := range map[AccountKey]string{{1, "ann", "CNY"}: "8770", {1, "ann", "ETH"}: "3000000000000000001",
		{1, "ann", "JPY"}: "10",
		{1, "bob", "ETH"}: "2999999999999999999", {1, "bob", "JPY"}: "0"} {
		if got := p.Row(key).Balance.String(); got != want {
			t.Errorf("%v has %s, want %s", key, got, want)
		}
	}
	yen.Amount = dec("0.5")
	p.refused(amount.TooPrecise, move("y", yen))
	yen.Asset = "USD"
	p.refused(AccountNotFound, move("y", yen))
}

func TestRefusalReportsTheState(t *testing.T) {
	p := oddTown(t)
	tests := []struct {
		want  *fault.Reason
		c     *TransferCommand
		state map[string]string
	}{
		{AccountNotFound, move("x", post("nobody", "bob", "1")),
			map[string]string{"account": "nobody", "asset": "CNY"}},
		{InsufficientFunds, move("x", post("keeping", "bob", "3")),
			map[string]string{"account": "keeping", "asset": "CNY", "available": "2.00", "balance": "10.00",
				"held": "8.00"}},
		{BalanceLimitExceeded, move("x", post("ann", "full", "11")),
			map[string]string{"account": "full", "balance": "90.00", "max_balance": "100.00"}},
		{StaleVersion, move("x", post("ann", "bob", "1")).when(on("ann", 1, "")),
			map[string]string{"account": "ann", "version": "2"}},
		{BalanceConditionFailed, move("x", post("ann", "bob", "1")).when(on("bob", -1, "101")),
			map[string]string{"account": "bob", "balance": "100.00"}},
		{amount.TooPrecise, move("x", post("ann", "bob", "0.001")), map[string]string{"asset": "CNY", "scale": "2"}},
		{AccountFrozen, move("x", post("frozen", "bob", "1")), map[string]string{"account": "frozen", "asset": "CNY"}},
	}
	for _, test := range tests {
		got := p.refused(test.want, test.c).Metadata
		for name, value := range test.state {
			if got[name] != value {
				t.Errorf("%s: %s is %q, want %q", test.want.Name, name, got[name], value)
			}
		}
	}
}

func TestRefusedTransferDoesNotReserveItsName(t *testing.T) {
	p := newTown(t)
	p.refused(InsufficientFunds, move("x", post("cid", "bob", "1")))
	p.must(move("x", post("ann", "bob", "1"))) // other content, same biz_no, same batch
	p.refused(BizNoExistsDifferent, move("x", post("cid", "bob", "1")))
	p.stands("ann 99.00 0.00 1", "bob 101.00 0.00 1", "cid 0.00 0.00 0")
}

func TestTransfersOfOneCommandAreAllOrNone(t *testing.T) {
	p := newTown(t)
	all := func(c ...*TransferCommand) *TransferAllCommand {
		a := &TransferAllCommand{}
		for _, c := range c {
			a.Transfers = append(a.Transfers, *c)
		}
		return a
	}
	f := p.refused(InsufficientFunds, all(move("a", post("ann", "cid", "5")), move("b", post("cid", "bob", "5")),
		move("c", post("cid", "bob", "1"))))
	if f.Metadata["item"] != "2" || f.Metadata["biz_no"] != "c" {
		t.Errorf("state %v", f.Metadata)
	}
	p.stands("ann 100.00 0.00 0", "bob 100.00 0.00 0", "cid 0.00 0.00 0")

	made := p.must(all(move("a", post("ann", "cid", "5")), move("b", post("cid", "bob", "5")),
		move("a", post("ann", "cid", "5.00")))).([]TransferResult)
	if len(made) != 3 || made[0].Existed || made[1].Existed || !made[2].Existed ||
		made[2].Transfer != made[0].Transfer {
		t.Errorf("made %+v", made)
	}
	p.stands("ann 95.00 0.00 1", "cid 0.00 0.00 2", "bob 105.00 0.00 1")
	f = p.refused(BizNoExistsDifferent, all(move("d", post("ann", "bob", "1")), move("d", post("ann", "bob", "2"))))
	if f.Metadata["item"] != "1" {
		t.Errorf("state %v", f.Metadata)
	}
	p.stands("ann 95.00 0.00 1")
}
