package ledger

import (
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// TransferAllCommand makes transfers in order, all or none. Its answer is a []TransferResult.
type TransferAllCommand struct{ Transfers []TransferCommand }

// TransferResult is one transfer of several.
type TransferResult struct {
	Transfer *Transfer
	Existed  bool // under its biz_no, before
}

// Need names what all of them need.
func (c *TransferAllCommand) Need(tx *Tx) {
	for i := range c.Transfers {
		c.Transfers[i].Need(tx)
	}
}

// Apply makes them. The first that fails fails all, and the fault's state tells which it was.
func (c *TransferAllCommand) Apply(tx *Tx) (any, error) {
	made := make([]TransferResult, len(c.Transfers))
	for i := range c.Transfers {
		answer, err := c.Transfers[i].Apply(tx)
		if err != nil {
			if f := fault.Of(err); f != nil {
				return nil, f.With("item", i).With("biz_no", c.Transfers[i].BizNo)
			}
			return nil, err
		}
		if r, ok := answer.(commit.Repeat); ok {
			made[i] = TransferResult{r.First.(*Transfer), true}
			continue
		}
		made[i] = TransferResult{Transfer: answer.(*Transfer)}
	}
	return made, nil
}
