package book

import "slices"

// Total has the sums of a currency, in major units.
type Total struct {
	Taken      string `json:"taken"`        // including Foreign
	Foreign    string `json:"foreign"`      // part of Taken that names another merchant, app or mode
	GivenBack  string `json:"given_back"`   // refunds that succeeded
	GivingBack string `json:"giving_back"`  // pending refunds
	Moved      int    `json:"transactions"` // number of transactions
}

// Totals has the sums of all payments, for comparison with a merchant's books.
type Totals struct {
	Currencies map[string]*Total            `json:"currencies"`
	Gateways   map[string]map[string]*Total `json:"gateways"`
	Numbers    map[string]map[string]*Total `json:"numbers"` // by gateway/number
	// Accepted is the number of forgeries that merchants acknowledged.
	Accepted int `json:"forgeries_accepted"`
}

// money has the sums of a Total, as numbers.
type money struct{ taken, foreign, back, pending, moved int64 }

func (m *money) add(n money) {
	m.taken += n.taken
	m.foreign += n.foreign
	m.back += n.back
	m.pending += n.pending
	m.moved += n.moved
}

func (m *money) total(currency string) *Total {
	return &Total{Taken: sum(m.taken, currency), Foreign: sum(m.foreign, currency), GivenBack: sum(m.back, currency),
		GivingBack: sum(m.pending, currency), Moved: int(m.moved)}
}

// Totals sums all payments.
func (b *Book) Totals() *Totals {
	b.mu.Lock()
	defer b.mu.Unlock()
	sums := map[[2]string]*money{} // by name with its prefix, and by currency
	add := func(name, currency string, m money) {
		if sums[[2]string{name, currency}] == nil {
			sums[[2]string{name, currency}] = &money{}
		}
		sums[[2]string{name, currency}].add(m)
	}
	for _, p := range b.payments {
		for i := range p.Transactions {
			t := &p.Transactions[i]
			m := money{taken: rescale(t.Amount, t.Scale, sumScale), moved: 1,
				back: rescale(b.givenBack(p, t.ID, RefundSucceeded), t.Scale, sumScale),
				pending: rescale(b.givenBack(p, t.ID, RefundProcessing)+b.givenBack(p, t.ID, RefundAbnormal),
					t.Scale, sumScale)}
			if t.Foreign() {
				m.foreign = m.taken
			}
			for _, name := range []string{"", "g/" + p.Gateway, "n/" + p.Gateway + "/" + p.Number} {
				add(name, t.Currency, m)
			}
		}
	}
	all := &Totals{Currencies: map[string]*Total{}, Gateways: map[string]map[string]*Total{},
		Numbers: map[string]map[string]*Total{}, Accepted: b.accepted}
	put := func(to map[string]map[string]*Total, name, currency string, t *Total) {
		if to[name] == nil {
			to[name] = map[string]*Total{}
		}
		to[name][currency] = t
	}
	for key, m := range sums {
		name, currency := key[0], key[1]
		switch {
		case name == "":
			all.Currencies[currency] = m.total(currency)
		case name[0] == 'g':
			put(all.Gateways, name[2:], currency, m.total(currency))
		default:
			put(all.Numbers, name[2:], currency, m.total(currency))
		}
	}
	for _, n := range b.order {
		if slices.ContainsFunc(n.Attempts, func(a Attempt) bool { return a.Forgery != Honest && a.Acknowledged }) {
			all.Accepted++
		}
	}
	return all
}
