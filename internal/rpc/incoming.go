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

// Incoming is a message that a consumer in this process got from a broker.
type Incoming struct {
	Identity  access.Identity
	RequestID string // empty, or no good one: a new one is made
	// Request is the full name of the request that the body is, in JSON. Empty: the body is an
	// ExecuteRequest, or says in "@type" which request it is.
	Request  string
	Key      inbox.Key
	Delivery inbox.Delivery // its Content is the body
}

// Messages runs what messages of brokers ask for, as BatchService.Execute would, each in one transaction
// with the row of its message.
type Messages struct{ *Mutations }

// Run receives a message, and runs what it asks for. Returns fault FIELD_INVALID when that cannot be
// read, those of Receive, and those of the operations.
func (s *Messages) Run(ctx context.Context, in *Incoming) error {
	r, err := in.execute()
	if err != nil {
		return err
	}
	if err := check(r); err != nil {
		return err
	}
	_, err = run(in.call(ctx), s.Mutations, executeOperation, r)
	return err
}

// Finish marks a message as done that has nothing to do.
func (s *Messages) Finish(ctx context.Context, in *Incoming, result string) error {
	r := &inboxv1.ReceiveRequest{Key: in.key(), Delivery: in.delivery(), Result: result}
	if err := check(r); err != nil {
		return err
	}
	_, err := run(in.call(ctx), s.Mutations, receiveCall, r)
	return err
}

// Fail counts a failed attempt of a message. The answer is the message as it is now.
func (s *Messages) Fail(ctx context.Context, in *Incoming, why string, permanent bool) (inbox.Message, error) {
	r := &inboxv1.FailRequest{Key: in.key(), Error: why, Permanent: permanent, Delivery: in.delivery()}
	if err := check(r); err != nil {
		return inbox.Message{}, err
	}
	var told inbox.Message
	o := operation[*inboxv1.FailRequest, *inboxv1.FailResponse]{name: failMessageCall.name,
		read: func(c *call, d *decoder, r *inboxv1.FailRequest) mutation[*inboxv1.FailResponse] {
			g := failMessageCall.read(c, d, r)
			g.render = func(answer any, _ bool) (*inboxv1.FailResponse, error) {
				told = answer.(inbox.Message)
				return &inboxv1.FailResponse{}, nil
			}
			return g
		}}
	_, err := run(in.call(ctx), s.Mutations, o, r)
	return told, err
}

// call is what the gate would know of the call, had it come over the wire.
func (in *Incoming) call(ctx context.Context) context.Context {
	if !goodRequestID(in.RequestID) {
		in.RequestID = newRequestID()
	}
	return context.WithValue(ctx, callKey{}, &call{identity: in.Identity, requestID: in.RequestID})
}

func (in *Incoming) key() *inboxv1.MessageKey {
	return &inboxv1.MessageKey{ConsumerGroup: in.Key.Group, MessageId: in.Key.ID, Part: in.Key.Part}
}

func (in *Incoming) delivery() *inboxv1.Delivery {
	d := &in.Delivery
	r := &inboxv1.Delivery{Topic: d.Topic, Content: d.Content, ContentLife: durationpb.New(d.ContentLife),
		MaxAttempts: d.MaxAttempts,
		Backoff:     durationpb.New(d.Backoff), MaxBackoff: durationpb.New(d.MaxBackoff)}
	if d.Keep > 0 {
		r.Keep = durationpb.New(d.Keep)
	}
	if len(d.Content) > inbox.MaxContent {
		sum := sha256.Sum256(d.Content)
		r.Content, r.ContentSha256 = nil, sum[:]
	}
	return r
}

// execute is what the message asks for, behind the receipt of the message itself.
func (in *Incoming) execute() (*batchv1.ExecuteRequest, error) {
	r, err := in.asked()
	if err != nil {
		return nil, err
	}
	first, err := inAny(&inboxv1.ReceiveRequest{Key: in.key(), Delivery: in.delivery()})
	if err != nil {
		return nil, err
	}
	r.Operations = append([]*batchv1.Operation{{Request: first}}, r.GetOperations()...)
	return r, nil
}

// asked reads what the message asks for.
func (in *Incoming) asked() (*batchv1.ExecuteRequest, error) {
	body := in.Delivery.Content
	if len(body) > maxRequestBytes {
		return nil, fault.FieldInvalid.New("the message is larger than %d MiB", maxRequestBytes>>20)
	}
	if in.Request != "" {
		kind, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(in.Request))
		if err != nil {
			return nil, fault.FieldInvalid.New("the server knows no request of type %s", in.Request)
		}
		return one(body, kind.New().Interface())
	}
	var typed struct {
		Type string `json:"@type"`
	}
	if bytes.Contains(body, []byte(`"@type"`)) && json.Unmarshal(body, &typed) == nil && typed.Type != "" {
		request := new(anypb.Any)
		if err := readJSON.Unmarshal(body, request); err != nil {
			return nil, unreadable(err)
		}
		return alone(request), nil
	}
	r := new(batchv1.ExecuteRequest)
	if err := readJSON.Unmarshal(body, r); err != nil {
		return nil, unreadable(err)
	}
	if r.GetDryRun() || len(r.GetOperations()) == 0 {
		return nil, fault.FieldInvalid.New("a message must have operations and must not set dry_run")
	}
	return r, nil
}

func one(body []byte, request proto.Message) (*batchv1.ExecuteRequest, error) {
	if err := readJSON.Unmarshal(body, request); err != nil {
		return nil, unreadable(err)
	}
	p, err := inAny(request)
	return alone(p), err
}

func alone(request *anypb.Any) *batchv1.ExecuteRequest {
	return &batchv1.ExecuteRequest{Operations: []*batchv1.Operation{{Request: request}}}
}

// IsRequest tells whether a name is that of a request that can be a message's body.
func IsRequest(name string) bool {
	_, ok := operations[protoreflect.FullName(name)]
	return ok
}

func inAny(m proto.Message) (*anypb.Any, error) {
	a := new(anypb.Any)
	return a, anypb.MarshalFrom(a, m, marshal)
}

func unreadable(err error) error {
	m := new(batchv1.ExecuteRequest)
	leaveUnread(m, err)
	return unread(m)
}
