package ledger

import (
	"maps"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/fault"
)

func assets(a ...NewAsset) *CreateAssetsCommand { return &CreateAssetsCommand{Caller: me, Assets: a} }

func accounts(a ...NewAccount) *CreateAccountsCommand {
	return &CreateAccountsCommand{Caller: me, Accounts: a}
}

func newAccount(code string) NewAccount {
	return NewAccount{Code: code, Asset: "CNY", Kind: KindLiability, Min: new(amount.Decimal)}
}

func TestAssetIsCreatedOnceWithOneScale(t *testing.T) {
	p := NewPaper(t, noon)
	made := p.must(assets(NewAsset{"CNY", 2}, NewAsset{"ETH", 18}, NewAsset{"CNY", 2})).([]Asset)
	if len(made) != 3 || made[1].Scale != 18 || !made[0].CreatedAt.Equal(noon) || len(p.newAssets) != 2 {
		t.Errorf("made %+v", made)
	}
	p.must(assets(NewAsset{"CNY", 2}))
	if f := p.refused(AssetExistsDifferent, assets(NewAsset{"JPY", 0},
		NewAsset{"CNY", 3})); f.Metadata["scale"] != "2" {
		t.Errorf("state %v", f.Metadata)
	}
	if len(p.newAssets) != 2 {
		t.Errorf("%d assets", len(p.newAssets))
	}
	p.must(assets(NewAsset{"JPY", 1})) // the refusal did not reserve the name
}

func TestAccountsAreCreatedAllOrNone(t *testing.T) {
	p := NewPaper(t, noon)
	p.refused(AssetNotFound, accounts(newAccount("x")))
	p.must(assets(NewAsset{"CNY", 2}))
	tooLow, tooHigh := newAccount("y"), newAccount("y")
	tooLow.Min, tooHigh.Min, tooHigh.Max = decOf("0.01"), nil, decOf("-0.01")
	crossed := newAccount("y")
	crossed.Max = decOf("-0.01")
	precise := newAccount("y")
	precise.Max = decOf("0.001")
	p.refused(AccountLimitViolated, accounts(newAccount("x"), tooLow))
	p.refused(AccountLimitViolated, accounts(newAccount("x"), tooHigh))
	p.refused(fault.FieldInvalid, accounts(newAccount("x"), crossed))
	p.refused(amount.TooPrecise, accounts(newAccount("x"), precise))
	if p.Row(AccountKey{1, "x", "CNY"}) != nil {
		t.Error("x was created")
	}
	made := p.must(accounts(newAccount("x"), newAccount("y"))).(CreatedAccounts)
	if made.Existed != 0 || made.Accounts[0].State != Open || made.Accounts[0].ID == made.Accounts[1].ID ||
		made.Accounts[1].madeBy != "r" {
		t.Errorf("made %+v", made)
	}
	p.give("world", "0", unbounded)
	p.must(move("t", post("world", "x", "5"))) // in the same batch
	p.must(move("u", post("x", "y", "5")))
	p.stands("x 0.00 0.00 2", "y 5.00 0.00 1")
	if a := p.Row(AccountKey{1, "y", "CNY"}); !a.fresh {
		t.Error("y is no longer to be inserted")
	}
}

func TestExistingAccountWithTheSameContentIsUnchanged(t *testing.T) {
	p := NewPaper(t, noon)
	p.must(assets(NewAsset{"CNY", 2}))
	want := newAccount("x")
	want.Max, want.Metadata = decOf("10"), noted("a", "1")
	p.must(accounts(want))
	p.must(change("x", AccountChange{Metadata: noted("a", "2")}))
	again := p.must(accounts(want, newAccount("y"))).(CreatedAccounts)
	if again.Existed != 1 || again.Accounts[0].Metadata["a"] != "2" {
		t.Errorf("repeat %+v", again)
	}
	for fields, c := range map[string]func(*NewAccount){
		"kind":                         func(a *NewAccount) { a.Kind = KindAsset },
		"min_balance":                  func(a *NewAccount) { a.Min = nil },
		"max_balance":                  func(a *NewAccount) { a.Max = decOf("10.01") },
		"kind,min_balance,max_balance": func(a *NewAccount) { a.Kind, a.Min, a.Max = KindAsset, decOf("-1"), nil },
	} {
		other := want
		c(&other)
		if f := p.refused(AccountExistsDifferent, accounts(newAccount("z"), other)); f.Metadata["differs"] != fields {
			t.Errorf("differs in %q, want %q", f.Metadata["differs"], fields)
		}
	}
}

func TestNewLimitsMustFitTheCurrentBalance(t *testing.T) {
	tests := []struct {
		name   string
		code   string
		change AccountChange
		want   *fault.Reason // nil: accepted
	}{
		{"least balance as it stands", "ann", AccountChange{Min: decOf("40")}, nil},
		{"least balance above", "ann", AccountChange{Min: decOf("40.01")}, AccountLimitViolated},
		{"overdraft", "ann", AccountChange{Min: decOf("-5")}, nil},
		{"greatest balance as it stands", "ann", AccountChange{Max: decOf("100")}, nil},
		{"greatest balance below", "ann", AccountChange{Max: decOf("99.99")}, AccountLimitViolated},
		{"least above greatest", "ann", AccountChange{Min: decOf("10"), Max: decOf("5")}, AccountLimitViolated},
		{"unbounded", "ann", AccountChange{Unbounded: true, ClearMax: true}, nil},
		{"too precise", "ann", AccountChange{Min: decOf("0.001")}, amount.TooPrecise},
		{"least balance of a debtor", "world", AccountChange{Min: decOf("0")}, AccountLimitViolated},
		{"least balance 39 digits above", "abyss", AccountChange{Min: decOf("999999999999999999999999999999999999.99")},
			AccountLimitViolated},
		{"balance less held of 39 digits", "heavy", AccountChange{Min: decOf("0")}, AccountLimitViolated},
		{"held and least balance of 39 digits", "heavy",
			AccountChange{Min: decOf("999999999999999999999999999999999999.99")}, AccountLimitViolated},
		{"least balance 39 digits below", "rich", AccountChange{Min: decOf("-999999999999999999999999999999999999.99")},
			nil},
		{"no such account", "nobody", AccountChange{}, AccountNotFound},
		{"closed", "closed", AccountChange{ClearMax: true}, AccountClosed},
		{"closed, to be frozen", "closed", AccountChange{State: Frozen}, AccountClosed},
		{"closed, to be opened", "closed", AccountChange{State: Open}, AccountClosed},
		{"closed already", "closed", AccountChange{State: Closed}, nil},
		{"close with a balance", "bob", AccountChange{State: Closed}, AccountNotEmpty},
		{"close with a debt", "world", AccountChange{State: Closed}, AccountNotEmpty},
		{"close with a hold", "holding", AccountChange{State: Closed}, AccountNotEmpty},
		{"close empty", "cid", AccountChange{State: Closed}, nil},
		{"close frozen", "ice", AccountChange{State: Closed}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := newTown(t)
			p.must(hold("h", "ann", "", "60"))
			p.give("closed", "0", state(Closed))
			p.give("ice", "0", state(Frozen))
			p.give("holding", "0", unbounded, func(a *Account) { a.Held = units("1") })
			p.give("abyss", "-500000000000000000000000000000000000", unbounded)
			p.give("heavy", "-500000000000000000000000000000000000", unbounded,
				func(a *Account) { a.Held = units("600000000000000000000000000000000000") })
			p.give("rich", "500000000000000000000000000000000000")
			if test.want != nil {
				p.refused(test.want, change(test.code, test.change))
				return
			}
			got := p.must(change(test.code, test.change)).(*Account)
			if test.change.State != "" && got.State != test.change.State {
				t.Errorf("state %s", got.State)
			}
			if test.change.Unbounded && (got.Min != nil || got.Max != nil) {
				t.Errorf("limits %v, %v", got.Min, got.Max)
			}
		})
	}
}

func TestNewLimitsApplyToLaterTransfers(t *testing.T) {
	p := newTown(t)
	p.must(change("ann", AccountChange{Min: decOf("60")}))
	p.refused(InsufficientFunds, move("x", post("ann", "bob", "40.01")))
	p.must(change("ann", AccountChange{Max: decOf("100")}))
	p.refused(BalanceLimitExceeded, move("x", post("bob", "ann", "0.01")))
	p.must(change("ann", AccountChange{Min: decOf("-1"), ClearMax: true}))
	p.must(move("x", post("ann", "bob", "101")))
	p.stands("ann -1.00 0.00 1")
}

func TestMetadataIsSetByNameAndRemovedByAnEmptyValue(t *testing.T) {
	p := newTown(t)
	p.give("x", "0", func(a *Account) { a.Metadata = noted("a", "1", "b", "2") })
	before := p.Row(AccountKey{1, "x", "CNY"}).Metadata
	got := p.must(change("x", AccountChange{Metadata: noted("a", "", "c", "3", "none", "")})).(*Account)
	if !maps.Equal(got.Metadata, noted("b", "2", "c", "3")) {
		t.Errorf("metadata %v", got.Metadata)
	}
	if !maps.Equal(before, noted("a", "1", "b", "2")) {
		t.Errorf("the old map was written: %v", before)
	}
	p.refused(AccountLimitViolated, change("x", AccountChange{Min: decOf("1"), Metadata: noted("d", "4")}))
	if len(p.newDetails) != 1 {
		t.Errorf("%d details to write", len(p.newDetails))
	}
}

// The API bounds the metadata of one request; the ledger bounds the sum over all requests.
func TestMetadataDoesNotGrowPastTheLimitOfTheTable(t *testing.T) {
	p := newTown(t)
	p.must(change("ann", AccountChange{Metadata: noted("a", strings.Repeat("x", 16<<10-1))}))
	p.refused(fault.FieldInvalid, change("ann", AccountChange{Metadata: noted("b", "1")}))
	p.must(change("ann", AccountChange{Metadata: noted("a", "", "b", "1")}))
	many := map[string]string{}
	for i := range 64 {
		many[string(rune('à'+i))] = "1"
	}
	p.refused(fault.FieldInvalid, change("ann", AccountChange{Metadata: many})) // 65 pairs together with b
	p.must(change("ann", AccountChange{Metadata: noted("b", "")}))
	p.must(change("ann", AccountChange{Metadata: many}))
}

func TestFrozenAccountCanBeCreditedButNotDebited(t *testing.T) {
	p := newTown(t)
	p.must(hold("h", "ann", "bob", "10"))
	p.must(change("ann", AccountChange{State: Frozen}))
	p.must(change("ann", AccountChange{State: Frozen})) // already frozen
	p.refused(AccountFrozen, move("x", post("ann", "bob", "1")))
	p.refused(AccountFrozen, hold("i", "ann", "bob", "1"))
	p.refused(AccountFrozen, capture("c", "h", "1"))
	p.must(move("x", post("bob", "ann", "1")))
	p.must(release("h"))
	p.must(change("ann", AccountChange{State: Open}))
	p.must(move("y", post("ann", "bob", "101")))
	p.stands("ann 0.00 0.00 2")
	p.must(change("ann", AccountChange{State: Closed}))
	p.refused(AccountClosed, move("z", post("bob", "ann", "1")))
	p.refused(AccountClosed, change("ann", AccountChange{State: Open}))
}
