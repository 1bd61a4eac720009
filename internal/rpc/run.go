package rpc

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/token"
)

// Mutations runs the changing calls of all services.
type Mutations struct {
	Engine *flow.Engine
	// KeyLife is how long request keys are kept.
	KeyLife time.Duration
	// Pepper is the key of fingerprints of requests that may name people. Nil: the server has no master key.
	Pepper []byte
	// Tokens knows which submit tokens were issued.
	Tokens *token.Reader
}

// mutation is one changing call on its way through the engine.
type mutation[R proto.Message] struct {
	command flow.Command
	request proto.Message // what the fingerprint is taken over
	rows    int
	dry     bool
	earnest bool // it cannot be part of a dry run
	// inner are operations within this one: what is required of them is required of it; spends: one of them is to
	// spend a token.
	inner  []string
	spends bool
	render func(answer any, existed bool) (R, error)
}

// operation is a kind of changing call: by it request keys are scoped, and Execute finds what a request asks for.
type operation[Q, R proto.Message] struct {
	name string // stands in recorded keys: never changes
	read func(*call, *decoder, Q) mutation[R]
	// response is what it answers; for Execute.
	response protoreflect.MessageDescriptor
}

// operations are all kinds of changing calls that can stand in an Execute, by the name of their request.
var operations = map[protoreflect.FullName]operation[proto.Message, proto.Message]{}

// register makes an operation known. Call it in package-level variables only.
func register[Q, R proto.Message](name string, read func(*call, *decoder, Q) mutation[R]) operation[Q, R] {
	var request Q
	var response R
	operations[request.ProtoReflect().Descriptor().FullName()] = operation[proto.Message, proto.Message]{name: name,
		response: response.ProtoReflect().Descriptor(),
		read: func(c *call, d *decoder, q proto.Message) mutation[proto.Message] {
			g := read(c, d, q.(Q))
			return mutation[proto.Message]{command: g.command, request: g.request, rows: g.rows, dry: g.dry,
				earnest: g.earnest,
				render:  func(answer any, existed bool) (proto.Message, error) { return g.render(answer, existed) }}
		}}
	return operation[Q, R]{name: name, read: read}
}

// run takes one change through the engine.
func run[Q, R proto.Message](ctx context.Context, s *Mutations, o operation[Q, R], q Q) (R, error) {
	c := callOf(ctx)
	var d decoder
	g := o.read(c, &d, q)
	if err := d.err(); err != nil {
		var none R
		return none, err
	}
	rendered, _, err := submit(ctx, s, o.name, g, q, 0)
	return rendered, err
}

// submit takes a change through the engine, and also tells how it ended. Its key, if it has one, lives most at
// most; 0: as long as it is told.
func submit[Q, R proto.Message](ctx context.Context, s *Mutations, name string, g mutation[R], q Q,
	most time.Duration) (R, commit.Outcome, error) {
	c := callOf(ctx)
	var rendered, none R
	g.request = q
	policy := c.policy(append([]string{name}, g.inner...)...)
	if g.dry || c.keyless {
		policy.KeyRequired = false
	}
	if !g.dry && !g.spends {
		c.requireToken(policy)
	}
	if c.token != nil {
		made := func(answer any, existed bool) (proto.Message, error) { return g.render(answer, existed) }
		if err := c.spendToken(name, g.dry, made); err != nil {
			return none, commit.Outcome{}, err
		}
	}
	key, err := s.requestKey(c, name, policy, q)
	if err != nil {
		return none, commit.Outcome{}, err
	}
	if key != nil && most > 0 {
		key.Life = min(key.Life, most)
	}
	out, err := s.Engine.Do(ctx, g.submission(c, key, &rendered))
	c.replayed = out.Replayed || out.Existed
	if err == nil {
		err = c.carry(ctx, s, out)
	}
	if err != nil {
		return none, out, err
	}
	r, err := g.answer(out, rendered)
	return r, out, err
}

// Operations are the names of all changing calls, sorted.
func Operations() []string {
	names := []string{executeOperation.name, batchOperation, sendBatchOperation}
	for _, o := range operations {
		names = append(names, o.name)
	}
	slices.Sort(names)
	return names
}

// work prepares the engine's work; the rendered answer is left in *rendered when it was recorded.
func (g *mutation[R]) submission(c *call, key *commit.Key, rendered *R) flow.Submission {
	w := flow.Submission{Tenant: c.identity.Tenant, RequestID: c.requestID,
		Command: flow.Behind(g.command, c.conditions...),
		Rows:    max(g.rows, 1), Bytes: 512 + proto.Size(g.request), DryRun: g.dry}
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
			return compressAnswer(b)
		}
	}
	return w
}

// answer reads an outcome: what was recorded, or what the command answered.
func (g *mutation[R]) answer(out commit.Outcome, rendered R) (R, error) {
	if out.Recorded != nil {
		r := rendered.ProtoReflect().New().Interface().(R)
		b, err := decompressAnswer(out.Recorded)
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

// notAdmitted is the error with which the engine refused all works of a call together, or nil. Then nothing of the call
// was kept, and one error says as much as one for each item.
func notAdmitted(results []commit.Result) error {
	if len(results) == 0 || !fault.Is(results[0].Err, fault.Busy) && !fault.Is(results[0].Err, fault.ShuttingDown) {
		return nil
	}
	for _, r := range results {
		if r.Err != results[0].Err {
			return nil
		}
	}
	return results[0].Err
}
