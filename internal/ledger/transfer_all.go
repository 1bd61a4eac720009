package ledger

import (
	"fmt"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// TransferAllCommand makes several transfers in order, all or none. Its answer is a []TransferResult.
type TransferAllCommand struct{ Transfers []TransferCommand }

// TransferResult is the result of one of several transfers.
type TransferResult struct {
	Transfer *Transfer
	Existed  bool // its biz_no existed before
}

// Need names the needs of all transfers.
func (c *TransferAllCommand) Need(tx *Tx) {
	for i := range c.Transfers {
		c.Transfers[i].Need(tx)
	}
}

// Apply makes the transfers. The first failure fails all of them; the fault's metadata has its index.
func (c *TransferAllCommand) Apply(tx *Tx) (any, error) {
	made := make([]TransferResult, len(c.Transfers))
	for i := range c.Transfers {
		answer, err := c.Transfers[i].Apply(tx)
		if err != nil {
			if f := fault.Of(err); f != nil {
				f.With("item", i).With("biz_no", c.Transfers[i].BizNo)
				return nil, fault.In(fmt.Sprintf("items[%d].transfer.", i), f)
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
