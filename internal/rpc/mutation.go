package rpc

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/compress"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/token"
)

// Mutations runs mutations for all services.
type Mutations struct {
	Engine *flow.Engine
	// KeyLife is the default life of request keys.
	KeyLife time.Duration
	// Pepper is the HMAC key of fingerprints of requests with personal data. Nil: the server has no master key.
	Pepper []byte
	// Tokens looks up issued submit tokens.
	Tokens *token.Reader
}

// operation is a kind of mutation. Execute finds it by the type of the request. Its name scopes request keys.
type operation[Q, R proto.Message] struct {
	name string // recorded with keys: must never change
	read func(*call, *decoder, Q) mutation[R]
	// keyless: responses are not recorded, so policies require no request key.
	keyless bool
	// response is the type of the response. Only Execute needs it.
	response protoreflect.MessageDescriptor
}

// mutation is a decoded request.
type mutation[R proto.Message] struct {
	command  flow.Command
	rows     int // estimated rows written
	dry      bool
	noDryRun bool // does not support dry runs
	// inner are the operations within this one. Policies for them apply to it. spends: one of them spends a token.
	inner  []string
	spends bool
	// render makes the response from the command's answer. existed: an earlier call made the resource.
	render func(answer any, existed bool) R
	// direct has the options of a call that runs in a transaction of its own; nil: the call runs in a batch.
	// standsAlone is the field of the request that asks for such a transaction, or empty: such a call is refused in
	// an Execute, and with guards.
	direct      *commit.Direct
	standsAlone string
	// toRecord and fromRecord convert an answer to its recorded form and back. Nil: the response is recorded.
	toRecord   func(flow.Result) ([]byte, error)
	fromRecord func(context.Context, []byte) (R, error)
	// storedBytes is the size of a stored request that the call runs besides its own.
	storedBytes int
	// maxKeyLife bounds the life of the request key. 0: no bound.
	maxKeyLife time.Duration
}

// newMutation makes a mutation of a command whose answers are of type A.
func newMutation[A any, R proto.Message](c flow.Command, rows int, render func(A, bool) R) mutation[R] {
	return mutation[R]{command: c, rows: rows,
		render: func(answer any, existed bool) R { return render(answer.(A), existed) }}
}

// result is the response of a mutation, with the values of its header.
type result[R proto.Message] struct {
	response   R
	answer     any    // of the command; nil if the response was recorded by an earlier call
	replayed   bool   // Idempotency-Replayed, also of an error
	next       string // Submit-Token-Next, or empty
	claimCount int64  // Claim-Count, or 0
}

// operations has all operations that an Execute supports, by the name of their request.
var operations = map[protoreflect.FullName]operation[proto.Message, proto.Message]{}

// register makes an operation and adds it to those of Execute. Call it only to initialize package-level variables.
func register[Q, R proto.Message](name string, read func(*call, *decoder, Q) mutation[R]) operation[Q, R] {
	var request Q
	var response R
	own := operation[Q, R]{name: name, read: read}
	inner := own.untyped()
	inner.response = response.ProtoReflect().Descriptor()
	operations[request.ProtoReflect().Descriptor().FullName()] = inner
	return own
}

// untyped returns the operation without the types of its messages, for Execute and approvals. It copies only those
// parts of the mutation that they use: the others matter to a call by itself.
func (o operation[Q, R]) untyped() operation[proto.Message, proto.Message] {
	return operation[proto.Message, proto.Message]{name: o.name,
		read: func(c *call, d *decoder, q proto.Message) mutation[proto.Message] {
			m := o.read(c, d, q.(Q))
			return mutation[proto.Message]{command: m.command, rows: m.rows, noDryRun: m.noDryRun,
				standsAlone: m.standsAlone, inner: m.inner,
				render: func(answer any, existed bool) proto.Message { return m.render(answer, existed) }}
		}}
}

// decode reads the mutation from a request.
func (o operation[Q, R]) decode(c *call, q Q) (mutation[R], error) {
	d := decoder{sample: c.sample}
	m := o.read(c, &d, q)
	if r, ok := any(q).(interface{ GetDryRun() bool }); ok {
		m.dry = r.GetDryRun()
	}
	return m, d.err()
}

// Operations returns the names of all operations, sorted.
func Operations() []string {
	names := append(executable(), executeName, batchName, sendBatchName,
		requestApprovalOperation.name, approveOperation.name, rejectOperation.name)
	slices.Sort(names)
	return names
}

// run serves a call that consists of one mutation.
func run[Q, R proto.Message](ctx context.Context, s *Mutations, o operation[Q, R], q Q) (R, error) {
	res, err := mutate(ctx, s, o, q)
	return res.reply(ctx, err)
}

// mutate reads a request and submits its mutation.
func mutate[Q, R proto.Message](ctx context.Context, s *Mutations, o operation[Q, R], q Q) (result[R], error) {
	m, err := o.decode(callOf(ctx), q)
	if err != nil {
		return result[R]{}, err
	}
	return submit(ctx, s, o, m, q)
}

// submit runs a mutation in the engine, with its request key, submit token and claim.
func submit[Q, R proto.Message](ctx context.Context, s *Mutations, o operation[Q, R], m mutation[R], q Q) (
	res result[R], err error) {
	c := callOf(ctx)
	if m.dry && c.token != nil {
		return res, fault.InvalidField("dry_run", "must not be set in a call with a submit token: "+
			"spending a token cannot be a dry run")
	}
	policy := access.Policy{}
	if !m.dry {
		policy = c.policy(append([]string{o.name}, m.inner...)...)
		policy.KeyRequired = policy.KeyRequired && !o.keyless
	}
	key, err := s.requestKey(c, o.name, policy, q)
	if err != nil {
		return res, err
	}
	if key != nil && m.maxKeyLife > 0 {
		key.Life = min(key.Life, m.maxKeyLife)
	}
	submitToken, claim := c.guards(o.name, policy.TokenRequired && !m.spends)
	var guards []flow.Guard
	if submitToken != nil {
		guards = append(guards, submitToken)
	}
	if claim != nil {
		guards = append(guards, claim)
	}
	if m.standsAlone != "" && (m.direct == nil || len(guards) > 0) {
		return res, refuseShared(m.standsAlone)
	}
	out, err := s.Engine.Do(ctx, m.submission(c, key, q, guards...))
	if err != nil {
		return result[R]{replayed: out.Replayed}, err
	}
	if res, err = m.result(ctx, out); err != nil {
		return res, err
	}
	if claim != nil {
		res.claimCount = claim.Uses()
	}
	if submitToken != nil && submitToken.Next {
		res.next, err = s.nextToken(ctx, submitToken, out)
	}
	return res, err
}

// submission prepares the mutation for the engine, which refuses it if it needs an approval. The batch that applies the
// command also renders its answer, and records the response under the request key.
func (m *mutation[R]) submission(c *call, key *commit.Key, q proto.Message, guards ...flow.Guard) flow.Submission {
	command := &flow.GuardedCommand{Guards: guards, Command: m.command,
		Render: func(answer any, existed bool) any { return m.render(answer, existed) }}
	if !m.dry {
		command.Denied = c.requireApproval(q)
	}
	w := flow.Submission{Tenant: c.identity.Tenant, RequestID: c.requestID, Key: key, Rows: max(m.rows, 1),
		Bytes: perCommand + proto.Size(q) + m.storedBytes, DryRun: m.dry, Encode: encodeResponse, Command: command}
	if len(guards) == 0 && command.Denied == nil {
		w.Direct = m.direct
	}
	if m.toRecord != nil {
		w.Encode = func(answer any) ([]byte, error) { return m.toRecord(answer.(flow.Result)) }
	}
	return w
}

// encodeResponse returns the recorded form of the response in an answer.
func encodeResponse(answer any) ([]byte, error) {
	b, err := marshal.Marshal(answer.(flow.Result).Response.(proto.Message))
	if err != nil {
		return nil, err
	}
	return compressResponse(b)
}

// result returns the response that the batch rendered, or the one that an earlier call recorded.
func (m *mutation[R]) result(ctx context.Context, out commit.Outcome) (res result[R], err error) {
	res.replayed = out.Replayed || out.Existed
	switch {
	case out.Recorded == nil:
		a := out.Answer.(flow.Result)
		res.response, res.answer = a.Response.(R), a.Value
	case m.fromRecord != nil:
		res.response, err = m.fromRecord(ctx, out.Recorded)
	default:
		res.response, err = decodeResponse[R](out.Recorded)
	}
	return res, err
}

func decodeResponse[R proto.Message](recorded []byte) (r R, err error) {
	b, err := decompressResponse(recorded)
	if err != nil {
		return r, err
	}
	r = r.ProtoReflect().New().Interface().(R)
	if err := proto.Unmarshal(b, r); err != nil {
		return r, fmt.Errorf("read a recorded response: %w", err)
	}
	return r, nil
}

// reply sets the header of the response, also for an error, and returns the results of a handler.
func (r result[R]) reply(ctx context.Context, err error) (R, error) {
	info, ok := connect.CallInfoForHandlerContext(ctx)
	if !ok { // the call came from this process, not over the wire
		return r.response, err
	}
	set := func(name, value string) {
		if value != "" {
			info.ResponseHeader().Set(name, value)
		}
	}
	if r.replayed {
		set(ReplayedHeader, "true")
	}
	if r.claimCount > 0 {
		set(ClaimCountHeader, strconv.FormatInt(r.claimCount, 10))
	}
	if r.next != "" {
		set(NextTokenHeader, r.next)
		noStore(ctx)
	}
	return r.response, err
}

// notAdmitted returns the error with which the engine refused all submissions of a call at once, or nil. Then the call
// had no effect, and it fails with one error instead of one for each item.
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

// policy merges the tenant's policies for the operations of a call, its own first: the call must meet all of them.
// Operations that issue or spend tokens require no token themselves.
func (c *call) policy(operations ...string) (all access.Policy) {
	for _, name := range operations {
		p := c.identity.Policies.For(name)
		all.KeyRequired = all.KeyRequired || p.KeyRequired
		all.TokenRequired = all.TokenRequired || p.TokenRequired && !strings.HasPrefix(name, "idempotency.")
		all.KeyLife = cmp.Or(all.KeyLife, p.KeyLife)
	}
	return all
}

// guards returns the submit token and the claim that a mutation depends on, if it has them. If the policy requires a
// token that is missing, its guard refuses the call, after the lookup of the request key.
func (c *call) guards(operation string, tokenRequired bool) (submitToken *flow.SubmitToken, claim *flow.ClaimGuard) {
	if c.token != nil || tokenRequired {
		submitToken = &flow.SubmitToken{Made: resourceMade}
		if c.token != nil {
			submitToken.Spend = *c.token
		}
		submitToken.Caller, submitToken.Operation = c.caller(), operation
	}
	if c.claim != nil {
		claim = flow.NewClaimGuard(c.caller(), *c.claim)
	}
	return submitToken, claim
}

// resourceMade returns the fields that identify the resource in a response. If the response itself has such fields, as
// that of Grab has the number of the order, the resource is named after the response: grab.
func resourceMade(a flow.Result) map[string]string {
	m := a.Response.(proto.Message).ProtoReflect()
	names := named(m)
	if names["resource"] == snake(string(m.Descriptor().Name())) {
		names["resource"] = strings.TrimSuffix(names["resource"], "_response")
	}
	return names
}

// requestKey returns the call's request key, or nil. Returns fault IDEMPOTENCY_KEY_MISSING if the policy requires one.
func (s *Mutations) requestKey(c *call, operation string, p access.Policy, request proto.Message) (*commit.Key, error) {
	switch {
	case c.key != "":
		return &commit.Key{Principal: c.identity.Principal, Operation: operation, Key: c.key,
			Fingerprint: s.fingerprint(request), Life: s.life(c, p)}, nil
	case p.KeyRequired:
		return nil, keyMissing(operation)
	}
	return nil, nil
}

func keyMissing(operation string) error {
	return commit.KeyMissing.New("a policy of the tenant requires the header %s for %s", KeyHeader, operation)
}

// life returns the life of a call's request keys: from the header, else from the policy, else from the server's flag.
func (s *Mutations) life(c *call, p access.Policy) time.Duration {
	return cmp.Or(c.keyLife, p.KeyLife, s.KeyLife)
}

// compressed is the first byte of a compressed response. No protobuf message begins with a zero byte, because field
// numbers start at 1.
const compressed = 0

// compressResponse compresses a large response. One with 10,000 accounts has 2 MB, mostly repetitions.
func compressResponse(response []byte) ([]byte, error) {
	if len(response) < compress.MinSize {
		return response, nil
	}
	b, err := compress.Append([]byte{compressed}, response)
	if err != nil {
		return nil, fmt.Errorf("compress a response: %w", err)
	}
	return b, nil
}

// decompressResponse returns a recorded response, byte for byte.
func decompressResponse(recorded []byte) ([]byte, error) {
	if len(recorded) == 0 || recorded[0] != compressed {
		return recorded, nil
	}
	response, err := compress.Decompress(recorded[1:])
	if err != nil {
		return nil, fmt.Errorf("decompress a recorded response: %w", err)
	}
	return response, nil
}

// nextToken returns the token that follows the spent one, if the caller asked for it. A replay returns the same token,
// if the first call issued it, and never issues another.
func (s *Mutations) nextToken(ctx context.Context, spent *flow.SubmitToken, out commit.Outcome) (string, error) {
	next := token.Next(spent.Token)
	if out.Replayed {
		if known, err := s.Tokens.Known(ctx, spent.Tenant, next); err != nil || !known {
			return "", err
		}
	}
	return next, nil
}
