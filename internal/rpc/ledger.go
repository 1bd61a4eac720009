// Package rpc is the thin layer between Connect and the commands: decode, run, encode. Besides the
// client it is the only place that sees protobuf.
package rpc

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// Ledger serves LedgerService.
type Ledger struct {
	Engine *flow.Engine
	Reader *ledger.Reader
	// KeyLife is how long request keys are kept.
	KeyLife time.Duration
	// Closing ends streams when it is closed.
	Closing <-chan struct{}
}

var _ ledgerv1connect.LedgerServiceHandler = (*Ledger)(nil)

func (c *call) caller() ledger.Caller {
	return ledger.Caller{Tenant: c.identity.Tenant, Principal: c.identity.Principal, RequestID: c.requestID}
}

// change is one changing call on its way through the engine.
type change[R proto.Message] struct {
	operation string
	command   commit.Command[*ledger.Book]
	request   proto.Message // what the fingerprint is taken over
	rows      int
	dry       bool
	render    func(answer any, existed bool) (R, error)
}

// work prepares the engine's work; the rendered answer is left in *rendered when it was recorded.
func (g *change[R]) work(s *Ledger, c *call, key *commit.Key, rendered *R) flow.Work {
	w := flow.Work{Tenant: c.identity.Tenant, RequestID: c.requestID, Command: flow.Ledger(g.command),
		Rows: max(g.rows, 1), Bytes: 512 + proto.Size(g.request), DryRun: g.dry}
	if key != nil {
		w.Key = key
		w.Encode = func(answer any) ([]byte, error) {
			r, err := g.render(answer, false)
			if err != nil {
				return nil, err
			}
			*rendered = r
			b, err := marshal.Marshal(r)
			if err != nil {
				return nil, err
			}
			return pack(b)
		}
	}
	return w
}

// answer reads an outcome: what was recorded, or what the command answered.
func (g *change[R]) answer(out commit.Outcome, rendered R) (R, error) {
	if out.Recorded != nil {
		r := rendered.ProtoReflect().New().Interface().(R)
		b, err := unpack(out.Recorded)
		if err != nil {
			return r, err
		}
		if err := proto.Unmarshal(b, r); err != nil {
			return r, fmt.Errorf("read a recorded answer: %w", err)
		}
		return r, nil
	}
	if out.Existed || !rendered.ProtoReflect().IsValid() {
		return g.render(out.Answer, out.Existed)
	}
	return rendered, nil
}

// run takes one change through the engine.
func run[R proto.Message](ctx context.Context, s *Ledger, g change[R]) (R, error) {
	c := callOf(ctx)
	var rendered, none R
	var key *commit.Key
	if c.key != "" {
		key = &commit.Key{Principal: c.identity.Principal, Operation: g.operation, Key: c.key,
			Fingerprint: fingerprint(g.request), Life: s.KeyLife}
	}
	out, err := s.Engine.Do(ctx, g.work(s, c, key, &rendered))
	c.replayed = out.Replayed || out.Existed
	if err != nil {
		return none, err
	}
	return g.answer(out, rendered)
}

// updateAccount is the change behind the four calls that change an account.
func updateAccount[R proto.Message](ctx context.Context, operation string, r proto.Message, code, asset string,
	c ledger.AccountChange, wrap func(*ledgerv1.Account) R) change[R] {
	return change[R]{operation: operation, request: r,
		command: &ledger.UpdateAccountCommand{Caller: callOf(ctx).caller(), Code: code, Asset: asset, Change: c},
		render:  func(answer any, _ bool) (R, error) { return wrap(renderAccount(answer.(*ledger.Account))), nil }}
}
