package csvfile

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/importer"
)

// comparison compares the bank's running balance with the ledger's. It keeps two balances per account.
type comparison struct {
	m        *Mapping
	accounts map[string]*balances
	report   *csv.Writer // rows for movements that differ; nil: no report

	exact, within, more int
	most                amount.Int // the greatest absolute difference
}

type balances struct {
	bank    *amount.Int // the bank's last balance; nil: unknown so far
	opening amount.Int
	ours    amount.Int // the opening balance plus this file's movements in the ledger
}

func newComparison(m *Mapping, report io.Writer) (*comparison, error) {
	c := &comparison{m: m, accounts: map[string]*balances{}}
	if report == nil {
		return c, nil
	}
	c.report = csv.NewWriter(report)
	return c, c.report.Write([]string{"line", "biz_no", "account", "date", "amount", "bank_balance", "follows",
		"difference", "ledger_balance", "drift"})
}

func (c *comparison) account(code string) *balances {
	b := c.accounts[code]
	if b == nil {
		b = &balances{}
		if c.m.balance == nil || c.m.balance.fromZero {
			b.bank = &amount.Int{}
		}
		c.accounts[code] = b
	}
	return b
}

// order sorts an account's movements of a day and computes the expected balance of each.
func (c *comparison) order(code string, day []*movement) []*movement {
	b := c.account(code)
	if c.m.balance == nil {
		return day
	}
	day = chain(day, b.bank)
	for _, v := range day {
		if b.bank == nil { // before its first movement the account had the opening balance
			opening := sub(v.balance, v.amount)
			b.opening, b.ours, b.bank = opening, opening, &opening
		}
		v.follows = add(*b.bank, v.amount)
		v.differs = v.follows != v.balance
		end := v.balance
		b.bank = &end
	}
	return day
}

// done records the outcome of a movement, in order, and reports a difference.
func (c *comparison) done(v *movement, o importer.Outcome) error {
	b := c.account(v.account)
	if o == importer.Landed || o == importer.Existed {
		b.ours = add(b.ours, v.amount)
	}
	if c.m.balance == nil {
		return nil
	}
	difference := sub(v.balance, v.follows)
	switch size := difference.Abs(); {
	case !v.differs:
		c.exact++
		return nil
	case size.Cmp(c.m.balance.tolerance) <= 0:
		c.within++
		c.most = amount.Greater(c.most, size)
	default:
		c.more++
		c.most = amount.Greater(c.most, size)
	}
	if c.report == nil {
		return nil
	}
	f := func(n amount.Int) string { return amount.Format(n, c.m.scale) }
	return c.report.Write([]string{strconv.Itoa(v.line), v.bizNo, v.account, v.at.Format("2006-01-02"), f(v.amount),
		f(v.balance), f(v.follows), f(difference), f(b.ours), f(sub(v.balance, b.ours))})
}

// String summarises the comparison.
func (c *comparison) String() string {
	differ := c.within + c.more
	s := fmt.Sprintf("the bank's running balance: %s follow exactly, %s differ", importer.Count(c.exact),
		importer.Count(differ))
	if differ == 0 {
		return s
	}
	if t := c.m.balance.tolerance; !t.IsZero() {
		s += fmt.Sprintf(" (%s by no more than %s, %s by more)", importer.Count(c.within), amount.Format(t, c.m.scale),
			importer.Count(c.more))
	}
	return s + ", at most by " + amount.Format(c.most, c.m.scale)
}
