package dispatch

import (
	"context"
	"fmt"
	"sync"

	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// account identifies an account of the ledger.
type account struct {
	tenant      int32
	code, asset string
}

// accounts remembers accounts that exist: they are never deleted.
type accounts struct {
	mu    sync.Mutex
	known map[account]bool
}

// maxAccounts bounds the memory.
const maxAccounts = 10_000

// checkAccounts refuses a payment, before its payer pays, if its money could not be posted: the payee or the clearing
// account of its gateway does not exist.
func (d *Dispatcher) checkAccounts(ctx context.Context, p *payment.Payment) error {
	codes := []string{p.Payee}
	if g, ok := d.KnownGateway(payment.GatewayKey{Tenant: p.Tenant, Gateway: p.Gateway}); ok {
		codes = append(codes, g.Clearing)
	}
	for _, code := range codes {
		a := account{p.Tenant, code, p.Asset}
		if d.accounts.has(a) {
			continue
		}
		exists, err := d.AccountExists(ctx, a.tenant, a.code, a.asset)
		switch {
		case err != nil:
			return err
		case !exists:
			return &gateway.CallError{Outcome: gateway.Refused, Code: "account_not_found",
				Text: fmt.Sprintf("there is no account %s in asset %s", code, p.Asset)}
		}
		d.accounts.add(a)
	}
	return nil
}

func (s *accounts) has(a account) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[a]
}

func (s *accounts) add(a account) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil || len(s.known) >= maxAccounts {
		s.known = map[account]bool{}
	}
	s.known[a] = true
}
