package payment

import "github.com/ledgerd/ledgerd/internal/hint"

// Gateways remembers gateways: a notice names the accounts that it will probably need.
type Gateways = hint.Memory[GatewayKey, Gateway]

// NewGateways returns an empty memory of at most 1,000 gateways.
func NewGateways() *Gateways {
	return hint.New[GatewayKey](1000, func(a, b Gateway) bool { return a == b })
}
