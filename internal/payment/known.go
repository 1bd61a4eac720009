package payment

import "sync"

// maxKnown limits the memory of gateways.
const maxKnown = 1000

// known has gateways as this process last read them: a notice names the accounts that it will probably need. It is only
// a hint: the command runs again if it finds others.
var known = struct {
	sync.RWMutex
	gateways map[GatewayKey]Gateway
}{gateways: map[GatewayKey]Gateway{}}

// KnownGateway returns a gateway as this process last read it.
func KnownGateway(k GatewayKey) (Gateway, bool) {
	known.RLock()
	defer known.RUnlock()
	g, ok := known.gateways[k]
	return g, ok
}

func learnGateways(rows []*GatewayRow) {
	for _, r := range rows {
		if g, ok := KnownGateway(r.Key); !r.Found || ok && g == r.Value {
			continue
		}
		known.Lock()
		for k := range known.gateways { // evicts in random order
			if len(known.gateways) < maxKnown {
				break
			}
			delete(known.gateways, k)
		}
		known.gateways[r.Key] = r.Value
		known.Unlock()
	}
}
