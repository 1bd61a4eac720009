package rpc

import (
	"cmp"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/stock"
)

var strategies = map[string]pb.Strategy{
	stock.Batched:     pb.Strategy_STRATEGY_BATCHED,
	stock.Atomic:      pb.Strategy_STRATEGY_ATOMIC,
	stock.Optimistic:  pb.Strategy_STRATEGY_OPTIMISTIC,
	stock.Pessimistic: pb.Strategy_STRATEGY_PESSIMISTIC,
	stock.Advisory:    pb.Strategy_STRATEGY_ADVISORY,
}

var strategyNames = inverse(strategies)

// byStrategy returns how a command runs outside an Execute and without token and claim: by the strategy that the call
// names, or else by that of its item. Otherwise the strategy of the item is ignored, and a strategy that the call names
// is refused: standsAlone is the name of its field.
func byStrategy(c *call, cmd *stock.ReserveCommand, r interface {
	GetStrategy() pb.Strategy
	GetMaxAttempts() int32
}) (direct *commit.Direct, standsAlone string) {
	if s := r.GetStrategy(); s != pb.Strategy_STRATEGY_UNSPECIFIED && s != pb.Strategy_STRATEGY_BATCHED {
		standsAlone = "strategy"
	}
	cmd.Strategy = cmp.Or(strategyNames[r.GetStrategy()],
		c.gate.Memory.Layouts.Strategy(stock.ItemKey{Tenant: cmd.Tenant, Item: cmd.Item}))
	return stock.Direct(cmd.Strategy, int(r.GetMaxAttempts())), standsAlone
}

// refuseShared refuses a call that would share a transaction, by the field that asks for one of its own.
func refuseShared(field string) error {
	const problem = "must be left out or be BATCHED: the call shares its transaction with other operations, " +
		"a submit token or a claim"
	return stock.StrategyStandsAlone.New("%s %s", field, problem).WithField(field, problem)
}
