package rpc

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	inboxv1 "github.com/ledgerd/ledgerd/gen/ledgerd/inbox/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/inbox"
)

// Incoming is a message that a consumer of this process received from a broker.
type Incoming struct {
	Identity  access.Identity
	RequestID string // replaced if empty or invalid
	// Request is the full name of the request whose JSON is the body. Empty: the body is an ExecuteRequest, or names
	// its type in "@type".
	Request  string
	Key      inbox.Key
	Delivery inbox.Delivery // its Content is the body
}

// Messages runs the requests in messages of brokers like BatchService.Execute, each in one transaction with the row of
// its message.
type Messages struct {
	*Mutations
	// Gate is the gate of calls over the wire.
	Gate *Gate
	// Policies returns the policies of a tenant that require approval: no others apply to messages. Nil: none is
	// checked.
	Policies func(ctx context.Context, tenant int32) (*access.Policies, error)
}

// Run receives a message and runs its request. Returns fault FIELD_INVALID if the body cannot be read,
// APPROVAL_REQUIRED, and the faults of Receive and of the operations.
func (s *Messages) Run(ctx context.Context, in *Incoming) error {
	r, lone, err := in.execute()
	if err == nil && s.Policies != nil {
		in.Identity.Policies, err = s.Policies(ctx, in.Identity.Tenant)
	}
	if err != nil {
		return err
	}
	if lone { // the body is one operation, so policies of batch.execute do not apply
		in.Identity.Policies = in.Identity.Policies.Without(executeName)
	}
	_, err = mutateIncoming(ctx, s, in, executeOperation, r)
	return err
}

// mutateIncoming validates a request and runs it as a call that the gate would have made.
func mutateIncoming[Q, R proto.Message](ctx context.Context, s *Messages, in *Incoming, o operation[Q, R], r Q) (
	res result[R], err error) {
	if err := check(r); err != nil {
		return res, err
	}
	return mutate(in.call(ctx, s.Gate), s.Mutations, o, r)
}

// Finish marks a message without a request as done.
func (s *Messages) Finish(ctx context.Context, in *Incoming, result string) error {
	r := &inboxv1.ReceiveRequest{Key: in.key(), Delivery: in.delivery(), Result: result}
	_, err := mutateIncoming(ctx, s, in, receiveOperation, r)
	return err
}

// Fail counts a failed attempt of a message, and returns the message in its new state.
func (s *Messages) Fail(ctx context.Context, in *Incoming, why string, permanent bool) (inbox.Message, error) {
	r := &inboxv1.FailRequest{Key: in.key(), FailureText: why, Permanent: permanent, Delivery: in.delivery()}
	res, err := mutateIncoming(ctx, s, in, failMessageOperation, r)
	failed, _ := res.answer.(inbox.Message)
	return failed, err
}

// call returns a context with the call that the gate would have made over the wire.
func (in *Incoming) call(ctx context.Context, gate *Gate) context.Context {
	if !goodRequestID(in.RequestID) {
		in.RequestID = newRequestID()
	}
	c := &call{gate: gate, identity: in.Identity, requestID: in.RequestID}
	return c.within(ctx)
}

func (in *Incoming) key() *inboxv1.MessageKey {
	return &inboxv1.MessageKey{ConsumerGroup: in.Key.Group, MessageId: in.Key.ID, Part: in.Key.Part}
}

func (in *Incoming) delivery() *inboxv1.Delivery {
	d := &in.Delivery
	r := &inboxv1.Delivery{Topic: d.Topic, Content: d.Content, ContentLife: durationpb.New(d.ContentLife),
		MaxAttempts: d.MaxAttempts, Backoff: durationpb.New(d.Backoff), MaxBackoff: durationpb.New(d.MaxBackoff)}
	if d.Life > 0 {
		r.Life = durationpb.New(d.Life)
	}
	if len(d.Content) > inbox.MaxContent {
		sum := sha256.Sum256(d.Content)
		r.Content, r.ContentSha256 = nil, sum[:]
	}
	return r
}

// execute returns the request of the message, with the receipt of the message as its first operation. lone: the body is
// one operation.
func (in *Incoming) execute() (r *batchv1.ExecuteRequest, lone bool, err error) {
	r, lone, err = in.parse()
	if err != nil {
		return nil, false, err
	}
	first, err := toAny(&inboxv1.ReceiveRequest{Key: in.key(), Delivery: in.delivery()})
	if err != nil {
		return nil, false, err
	}
	r.Operations = append([]*batchv1.Operation{{Request: first}}, r.GetOperations()...)
	return r, lone, nil
}

// parse decodes the body.
func (in *Incoming) parse() (r *batchv1.ExecuteRequest, lone bool, err error) {
	body := in.Delivery.Content
	if len(body) > maxRequestBytes {
		return nil, false, fault.FieldInvalid.New("the message is larger than %d MiB", maxRequestBytes>>20)
	}
	if in.Request != "" {
		kind, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(in.Request))
		if err != nil {
			return nil, false, fault.FieldInvalid.New("the server knows no request of type %s", in.Request)
		}
		request := kind.New().Interface()
		if err := unmarshalJSON(body, request); err != nil {
			return nil, false, err
		}
		packed, err := toAny(request)
		return singleOperation(packed), true, err
	}
	var typed struct {
		Type string `json:"@type"`
	}
	if bytes.Contains(body, []byte(`"@type"`)) && json.Unmarshal(body, &typed) == nil && typed.Type != "" {
		request := new(anypb.Any)
		return singleOperation(request), true, unmarshalJSON(body, request)
	}
	r = new(batchv1.ExecuteRequest)
	if err := unmarshalJSON(body, r); err != nil {
		return nil, false, err
	}
	if r.GetDryRun() || len(r.GetOperations()) == 0 {
		return nil, false, fault.FieldInvalid.New("a message must have operations and must not set dry_run")
	}
	return r, false, nil
}

func singleOperation(request *anypb.Any) *batchv1.ExecuteRequest {
	return &batchv1.ExecuteRequest{Operations: []*batchv1.Operation{{Request: request}}}
}

// IsRequest reports whether a name is that of a request that can be the body of a message.
func IsRequest(name string) bool {
	_, ok := operations[protoreflect.FullName(name)]
	return ok
}

func toAny(m proto.Message) (*anypb.Any, error) {
	a := new(anypb.Any)
	return a, anypb.MarshalFrom(a, m, marshal)
}

func unmarshalJSON(body []byte, m proto.Message) error {
	if err := readJSON.Unmarshal(body, m); err != nil {
		storeDecodeError(m, explainJSON(body, m, err))
		return decodeError(m)
	}
	return nil
}
