package csvfile

import (
	"github.com/ledgerd/ledgerd/internal/amount"
)

// mostExact is the largest number of movements of one account and day that are ordered optimally, by dynamic
// programming over 2^n states. Larger days are ordered greedily.
const mostExact = 12

// cost of an order: the number of movements that do not follow exactly, then the sum of the differences.
type cost struct {
	breaks int
	gap    amount.Int
}

func (c cost) less(d cost) bool {
	return c.breaks < d.breaks || c.breaks == d.breaks && c.gap.Cmp(d.gap) < 0
}

func (c cost) plus(gap amount.Int) cost {
	if gap.IsZero() {
		return c
	}
	return cost{c.breaks + 1, add(c.gap, gap)}
}

// chain orders an account's movements of one day so that their balances follow from each other, because a file's order
// within a day is often not the bank's. A movement follows if the balance before it plus its amount is its balance.
// chain minimises first the movements that do not follow, then the differences, and otherwise keeps the file's order.
// start is the balance before; nil: unknown, and any movement may be the first.
func chain(day []*movement, start *amount.Int) []*movement {
	if len(day) < 2 {
		return day
	}
	if len(day) > mostExact {
		return nearest(day, start)
	}
	n := len(day)
	// best[mask][last] is the cost of the remaining movements after those in mask, of which last is the latest.
	best := make([][]cost, 1<<n)
	full := len(best) - 1
	best[full] = make([]cost, n)
	for mask := full - 1; mask > 0; mask-- {
		best[mask] = make([]cost, n)
		for last := range n {
			if mask&(1<<last) != 0 {
				best[mask][last], _ = cheapest(day, best, mask, &day[last].balance)
			}
		}
	}
	ordered := make([]*movement, 0, n)
	for mask, end := 0, start; mask != full; {
		_, next := cheapest(day, best, mask, end)
		ordered = append(ordered, day[next])
		mask, end = mask|1<<next, &day[next].balance
	}
	return ordered
}

// cheapest is the next movement in the best order after those in mask, which ended with the balance end.
func cheapest(day []*movement, best [][]cost, mask int, end *amount.Int) (least cost, next int) {
	next = -1
	for i, v := range day {
		if mask&(1<<i) != 0 {
			continue
		}
		if c := best[mask|1<<i][i].plus(v.gap(end)); next < 0 || c.less(least) {
			least, next = c, i
		}
	}
	return least, next
}

func nearest(day []*movement, end *amount.Int) []*movement {
	left := append([]*movement(nil), day...)
	ordered := make([]*movement, 0, len(day))
	for len(left) > 0 {
		next := 0
		for i, v := range left {
			if v.gap(end).Cmp(left[next].gap(end)) < 0 {
				next = i
			}
		}
		ordered, end = append(ordered, left[next]), &left[next].balance
		left = append(left[:next], left[next+1:]...)
	}
	return ordered
}

// gap is the difference by which a movement does not follow a balance.
func (v *movement) gap(before *amount.Int) amount.Int {
	if before == nil {
		return amount.Int{}
	}
	return sub(v.balance, add(*before, v.amount)).Abs()
}

// add and sub saturate beyond 38 digits: here the result is only a measure.
func add(a, b amount.Int) amount.Int {
	n, ok := a.Add(b)
	if !ok && a.Sign() < 0 {
		return amount.Min
	}
	if !ok {
		return amount.Max
	}
	return n
}

func sub(a, b amount.Int) amount.Int { return add(a, b.Neg()) }
