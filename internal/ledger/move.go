package ledger

import "github.com/ledgerd/ledgerd/internal/amount"

// move makes one posting: two entries. unheld is how much of a hold it takes, so that what goes out
// was not available before.
func (tx *Tx) move(t *Transfer, from, to *Account, form Form, n, unheld amount.Int) error {
	if from.State == Closed {
		return from.closed()
	}
	if to.State == Closed {
		return to.closed()
	}
	if from.State == Frozen {
		return from.frozen()
	}
	n, err := from.resolve(form, n)
	if err != nil {
		return err
	}
	if unheld.IsZero() { // what a hold keeps is there
		if err := from.mayPay(n); err != nil {
			return err
		}
	}
	if err := to.mayReceive(n); err != nil {
		return err
	}
	if _, ok := from.Balance.Sub(n); !ok {
		return from.tooLarge()
	}
	if _, ok := to.Balance.Add(n); !ok {
		return to.tooLarge()
	}
	tx.touch(from)
	tx.touch(to)
	from.Held, _ = from.Held.Sub(unheld)
	posting := int16(len(t.Entries) / 2)
	tx.enter(t, from, posting, n.Neg())
	tx.enter(t, to, posting, n)
	return nil
}

func (tx *Tx) enter(t *Transfer, a *Account, posting int16, n amount.Int) {
	before := a.Balance
	a.Balance, _ = before.Add(n) // within 38 digits: move saw to it
	a.Version++
	a.LastEntryAt = tx.at.Recorded
	t.Entries = append(t.Entries, Entry{AccountID: a.ID, Account: a.Code, Asset: a.Asset, Scale: a.Scale,
		Version:    a.Version,
		TransferID: t.ID, Posting: posting, Amount: n, Before: before, After: a.Balance, RecordedAt: tx.at.Recorded,
		EffectiveAt: t.EffectiveAt})
}

func (a *Account) closed() error {
	return AccountClosed.New("account %s is closed", a.Code).With("account", a.Code).With("asset", a.Asset)
}

func (a *Account) frozen() error {
	return AccountFrozen.New("account %s is frozen", a.Code).With("account", a.Code).With("asset", a.Asset)
}

func (a *Account) tooLarge() error {
	return AmountTooLarge.New("the balance of %s would have more than 38 digits", a.Code).With("account", a.Code)
}

func (a *Account) mayPay(n amount.Int) error {
	if available, bounded := a.Available(); bounded && available.Cmp(n) < 0 {
		return a.insufficient()
	}
	return nil
}

func (a *Account) insufficient() error {
	available, _ := a.Available()
	return InsufficientFunds.New("account %s has %s %s available", a.Code, a.Format(available), a.Asset).
		With("account", a.Code).With("asset", a.Asset).With("available", a.Format(available)).
		With("balance", a.Format(a.Balance)).With("held", a.Format(a.Held))
}

func (a *Account) mayReceive(n amount.Int) error {
	if a.Max == nil {
		return nil
	}
	if after, ok := a.Balance.Add(n); !ok || after.Cmp(*a.Max) > 0 {
		return BalanceLimitExceeded.New("account %s may have at most %s %s", a.Code, a.Format(*a.Max), a.Asset).
			With("account", a.Code).With("asset", a.Asset).With("balance", a.Format(a.Balance)).With("max_balance",
			a.Format(*a.Max))
	}
	return nil
}

// resolve is the amount that a posting moves.
func (a *Account) resolve(form Form, n amount.Int) (amount.Int, error) {
	if form == Exact {
		return n, nil
	}
	available, bounded := a.Available()
	if !bounded {
		switch {
		case form == UpTo:
			return n, nil
		case a.Min == nil:
			return n, AvailableUnbounded.New("account %s has no min_balance, so its available balance is unlimited: name an amount", a.Code).With("account", a.Code).With("asset", a.Asset)
		}
		return n, AmountTooLarge.New("the available balance of %s has more than 38 digits", a.Code).With("account",
			a.Code)
	}
	if available.Sign() <= 0 {
		return n, a.insufficient()
	}
	if form == AllAvailable {
		return available, nil
	}
	return amount.Lesser(n, available), nil
}
