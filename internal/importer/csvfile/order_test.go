package csvfile

import (
	"fmt"
	"testing"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/importer"
)

func day(rows ...[2]int64) []*movement {
	var all []*movement
	for i, r := range rows {
		all = append(all, &movement{line: i, amount: amount.FromInt64(r[0]), balance: amount.FromInt64(r[1])})
	}
	return all
}

func lines(day []*movement) string {
	var all []int
	for _, v := range day {
		all = append(all, v.line)
	}
	return fmt.Sprint(all)
}

func TestADayIsOrderedByItsBalances(t *testing.T) {
	start := amount.FromInt64(100)
	for _, test := range []struct {
		name  string
		start *amount.Int
		day   []*movement
		want  string
	}{
		{"as the file has it", &start, day([2]int64{10, 110}, [2]int64{5, 115}), "[0 1]"},
		{"backwards", &start, day([2]int64{1, 116}, [2]int64{5, 115}, [2]int64{10, 110}), "[2 1 0]"},
		{"nothing follows: as the file has it", &start, day([2]int64{1, 50}, [2]int64{1, 500}), "[0 1]"},
		{"the greedy order would end in a gap", &start,
			day([2]int64{10, 110}, [2]int64{10, 120}, [2]int64{-20, 100}, [2]int64{7, 107}), "[0 1 2 3]"},
		{"one movement does not follow, the others do", &start,
			day([2]int64{3, 218}, [2]int64{5, 115}, [2]int64{10, 110}), "[2 1 0]"},
		{"the smaller differences, when as many differ", &start, day([2]int64{0, 300}, [2]int64{0, 101}), "[1 0]"},
		{"the beginning is not known", nil, day([2]int64{5, 25}, [2]int64{10, 20}), "[1 0]"},
	} {
		if got := lines(chain(test.day, test.start)); got != test.want {
			t.Errorf("%s: %s, not %s", test.name, got, test.want)
		}
	}
}

func TestALongDayIsOrderedToo(t *testing.T) {
	var rows [][2]int64
	for i := range int64(3 * mostExact) {
		rows = append([][2]int64{{1, i + 1}}, rows...)
	}
	ordered := chain(day(rows...), &amount.Int{})
	for i, v := range ordered {
		if n, _ := v.balance.Int64(); n != int64(i+1) {
			t.Fatal(lines(ordered))
		}
	}
}

func TestOpeningFirstTakesTheBalanceBeforeTheFirstMovement(t *testing.T) {
	m := &Mapping{balance: &balance{}, scale: 2}
	c, err := newComparison(m, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range c.order("", day([2]int64{5, 1005}, [2]int64{-5, 1000}, [2]int64{1, 1002})) {
		if err := c.done(v, importer.Landed); err != nil {
			t.Fatal(err)
		}
	}
	if n, _ := c.accounts[""].ours.Int64(); n != 1001 || c.exact != 2 || c.more != 1 {
		t.Fatalf("ours %d, %s", n, c)
	}
}
