package rpc

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/approval/v1"
	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/approval"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
)

// Approvals serves ApprovalService.
type Approvals struct {
	*Mutations
	Reader *approval.Reader
}

func (s *Approvals) RequestApproval(ctx context.Context, r *pb.RequestApprovalRequest) (*pb.RequestApprovalResponse,
	error) {
	return run(ctx, s.Mutations, requestApprovalOperation, r)
}

// requestApprovalOperation is not registered for Execute: neither are the other calls.
var requestApprovalOperation = operation[*pb.RequestApprovalRequest, *pb.RequestApprovalResponse]{
	name: "approval.request_approval",
	read: func(c *call, d *decoder, r *pb.RequestApprovalRequest) mutation[*pb.RequestApprovalResponse] {
		cmd := &approval.RequestCommand{Caller: c.caller(), Reason: d.name("reason", r.GetReason()),
			Life: durationOr(r.GetLife(), approval.DefaultLife)}
		if cmd.Reason == "" {
			d.bad("reason", "must say why")
		}
		w, err := c.withoutPolicies().readWanted(r.GetRequest())
		if err == nil {
			err = inRequest(w.permitAll(c))
		}
		if err == nil {
			cmd.Operation = w.operation.name
			cmd.Bytes, cmd.Details, err = w.encode(r.GetRequest())
		}
		d.refuse(err)
		return newMutation(flow.Approval(cmd), 1, func(x approval.Request, _ bool) *pb.RequestApprovalResponse {
			return &pb.RequestApprovalResponse{Approval: renderApproval(&x)}
		})
	}}

// refuse adds a fault to the problems of a request, or any other error as a problem of the field request.
func (d *decoder) refuse(err error) {
	if err == nil {
		return
	}
	if f := fault.Of(err); f != nil {
		d.deny(f)
		return
	}
	d.bad("request", err.Error())
}

// wanted is the request of an approval: the call that is to be approved, or was.
type wanted struct {
	operation operation[proto.Message, proto.Message]
	request   proto.Message
	mutation  mutation[proto.Message]
}

const (
	typePrefix  = "type.googleapis.com/"
	typeUnusual = "must have a type that begins with " + typePrefix
)

// plainType reports whether a type URL has the usual prefix and nothing else before the name: approvers read it.
func plainType(a *anypb.Any) bool {
	name, ok := strings.CutPrefix(a.GetTypeUrl(), typePrefix)
	return ok && !strings.Contains(name, "/")
}

var executeWanted = executeOperation.untyped()

// open decodes the request and finds its operation. Returns fault FIELD_INVALID.
func (w *wanted) open(packed *anypb.Any) (err error) {
	bad := func(problem string) error {
		return fault.InvalidField("request", "%s", problem)
	}
	if packed.GetTypeUrl() == "" {
		return bad(typeMissing)
	}
	if proto.Size(packed) > approval.MaxRequest {
		return bad(fmt.Sprintf("must be at most %d bytes as protobuf", approval.MaxRequest))
	}
	if w.request, err = packed.UnmarshalNew(); err != nil {
		return bad("is not of a type that this server knows")
	}
	if !plainType(packed) {
		return bad(typeUnusual)
	}
	known := true
	if _, execute := w.request.(*batchv1.ExecuteRequest); execute {
		w.operation = executeWanted
	} else {
		w.operation, known = operations[w.request.ProtoReflect().Descriptor().FullName()]
	}
	if !known || !approvable(w.operation.name) {
		return bad("is not the request of a call that can be approved")
	}
	return nil
}

// readWanted decodes and validates a request as its own call would. Returns PERMISSION_DENIED only for operations of an
// Execute: see permitAll.
func (c *call) readWanted(packed *anypb.Any) (w wanted, err error) {
	if err = w.open(packed); err != nil {
		return w, err
	}
	if err = check(w.request); err == nil {
		w.mutation, err = w.operation.decode(c, w.request)
	}
	if err == nil {
		err = w.unsupported()
	}
	return w, inRequest(err)
}

// unsupported returns the problems of a request that cannot run in the commit that approves it.
func (w *wanted) unsupported() error {
	var d decoder
	if w.mutation.dry {
		d.bad("dry_run", "must not be set: a dry run needs no approval")
	}
	if w.mutation.standsAlone != "" {
		return refuseShared(w.mutation.standsAlone)
	}
	if e, ok := w.mutation.command.(*execute); ok {
		for i := range e.steps {
			if name := e.steps[i].operation.name; !approvable(name) && name != grabManyName {
				d.bad(fmt.Sprintf("operations[%d].request", i), "is not the request of a call that can be approved")
			}
		}
		for i, o := range w.request.(*batchv1.ExecuteRequest).GetOperations() {
			if !plainType(o.GetRequest()) {
				d.bad(fmt.Sprintf("operations[%d].request", i), typeUnusual)
			}
		}
	}
	return d.err()
}

// encode returns the stored forms of a request: as protobuf and, unless it may hold personal data, as JSON.
func (w *wanted) encode(packed *anypb.Any) (bytes, details []byte, err error) {
	if details, err = protojson.Marshal(packed); err != nil { // such as NaN in a template's variable
		return nil, nil, fault.InvalidField("request",
			"cannot be written as JSON, so not every approver could read it").Because(err)
	}
	if personal(w.request) {
		details = nil
	}
	bytes, err = marshal.Marshal(packed)
	return bytes, details, err
}

// inRequest puts the fields of a fault below "request.".
func inRequest(err error) error {
	f := fault.Of(err)
	if f == nil || len(f.Fields) == 0 {
		return err
	}
	own := *f
	if strings.HasPrefix(f.Message, f.Fields[0].Path) {
		own.Message = "request." + f.Message
	}
	own.Fields = each(f.Fields, func(x fault.Field) fault.Field {
		return fault.Field{Path: "request." + x.Path, Description: x.Description}
	})
	return &own
}

// permitAll checks the role and the scopes of the caller for a request and for the operations of an Execute. The value
// that a reference will fill in is not known yet, so the caller needs rights to every value. Returns fault
// PERMISSION_DENIED.
func (w *wanted) permitAll(c *call) error {
	e, _ := w.request.(*batchv1.ExecuteRequest)
	for i, o := range e.GetOperations() {
		m, err := o.GetRequest().UnmarshalNew()
		if err != nil {
			return fmt.Errorf("read an approval: %w", err)
		}
		if err := cmp.Or(c.requireRoleOf(m), c.permit(unfilled(m, o.GetReferences()))); err != nil {
			return fault.In(fmt.Sprintf("operations[%d].request.", i), err)
		}
	}
	return cmp.Or(c.requireRoleOf(w.request), c.permit(w.request))
}

// unfilled returns the request with placeholders in the fields that references will fill: texts that no scope with a
// pattern covers, and amounts that only an administrator may set as a limit.
func unfilled(m proto.Message, references []*batchv1.Reference) proto.Message {
	if len(references) == 0 {
		return m
	}
	m = proto.Clone(m)
	for _, r := range references {
		field, problem := parsePath(r.GetField(), m.ProtoReflect().Descriptor())
		if problem != "" || field.inStruct() || field.last().Kind() != protoreflect.StringKind {
			continue
		}
		value := access.AnyText
		if slices.Contains(decimalFields, field.last().Name()) {
			value = "-1"
		}
		field.set(m.ProtoReflect(), protoreflect.ValueOfString(value))
	}
	return m
}

// permitDecision checks whether a caller other than the requester may see and decide a request. The fault does not
// disclose the request. Returns fault PERMISSION_DENIED.
func (w *wanted) permitDecision(c *call, a *approval.Content) error {
	err := w.permitAll(c)
	if fault.Is(err, access.PermissionDenied) {
		return access.PermissionDenied.New("the caller's role and scopes do not cover the request of approval %d",
			a.ID).
			With("approval_id", a.ID).Because(err)
	}
	return err
}

// find reads an approval of the caller's tenant and opens its request. If packed is nil, there is no such approval:
// commands refuse it after the lookup of the request key.
func (s *Approvals) find(ctx context.Context, id int64) (a approval.Content, packed *anypb.Any, w wanted, err error) {
	a, found, err := s.Reader.Content(ctx, approval.Key{Tenant: callOf(ctx).identity.Tenant, ID: id})
	if err != nil || !found {
		return a, nil, w, err
	}
	packed, err = unpack(a.Bytes)
	if err == nil {
		err = w.open(packed)
	}
	return a, packed, w, err
}

// unpack decodes a stored request or response.
func unpack(stored []byte) (*anypb.Any, error) {
	b, err := decompressResponse(stored)
	if err != nil {
		return nil, err
	}
	packed := new(anypb.Any)
	if err := proto.Unmarshal(b, packed); err != nil {
		return nil, fmt.Errorf("read an approval: %w", err)
	}
	return packed, nil
}

var approveOperation = operation[*pb.ApproveRequest, *pb.ApproveResponse]{name: "approval.approve"}

func (s *Approvals) Approve(ctx context.Context, r *pb.ApproveRequest) (*pb.ApproveResponse, error) {
	c := callOf(ctx)
	var d decoder
	cmd := &approve{Caller: c.caller(), id: r.GetApprovalId(), note: d.name("note", r.GetNote())}
	if err := d.err(); err != nil {
		return nil, err
	}
	a, packed, w, err := s.find(ctx, cmd.id)
	if err == nil && packed != nil && a.Principal != c.identity.Principal {
		cmd.RequestID = a.Key.RequestID()
		err = w.permitDecision(c, &a)
		if err == nil && a.DecidedBy == "" { // a decision never changes, so the request need not be read
			if w, err = c.onBehalfOf(&a).readWanted(packed); err == nil {
				cmd.wanted = &w
			}
		}
	}
	if err != nil {
		return nil, err
	}
	m := newMutation(cmd, w.mutation.rows+1, renderApproved)
	m.storedBytes = len(a.Bytes)
	res, err := submit(ctx, s.Mutations, approveOperation, m, r)
	return res.reply(ctx, err)
}

// onBehalfOf returns a copy of an approver's call that runs the request: with the rights of the approver, in the name
// of the requester, and without policies, since it is approved (withoutKey).
func (c *call) onBehalfOf(a *approval.Content) *call {
	own := c.withoutKey()
	own.approver, own.requestID = c.identity.Principal, a.Key.RequestID()
	own.identity.Principal, own.identity.KeyID = a.Principal, a.KeyID
	return own
}

// approve is the command that approves a request and runs it. Its answer is an approved, or a commit.Repeat of one.
type approve struct {
	commit.Caller // the approver
	id            int64
	note          string
	wanted        *wanted // nil: the caller's own request, one decided before, or one that the lookup did not find
	row           *approval.Row
}

type approved struct {
	approval.Request
	response *anypb.Any
}

// Need names the rows of the approval, and those of the request.
func (c *approve) Need(tx *flow.Tx) {
	c.row = tx.Approvals().Want(approval.Key{Tenant: c.Tenant, ID: c.id})
	if c.wanted != nil {
		c.wanted.mutation.command.Need(tx)
	}
}

// Apply runs the request. If the request is refused, the approval remains open.
func (c *approve) Apply(tx *flow.Tx) (any, error) {
	x := &c.row.Value.Request
	own := c.row.Exists && c.Principal == x.Principal
	if x.State == approval.Approved && !own {
		response, err := unpack(x.Response)
		return commit.Repeat{First: approved{*x, response}}, err
	}
	if err := tx.Approvals().Check(c.row); err != nil {
		return nil, err
	}
	if own {
		return nil, x.OwnFault()
	}
	if c.wanted == nil { // the approval was created after the lookup
		return nil, c.row.Key.NotFound()
	}
	g := &c.wanted.mutation
	answer, err := g.command.Apply(tx)
	if err != nil {
		return nil, inRequest(err)
	}
	first, existed := answer.(commit.Repeat)
	if existed {
		answer = first.First
	}
	response, err := toAny(g.render(answer, existed))
	if err != nil {
		return nil, err
	}
	stored, err := marshal.Marshal(response)
	if err == nil {
		stored, err = compressResponse(stored)
	}
	if err != nil {
		return nil, err
	}
	return approved{tx.Approvals().Decide(c.row, approval.Approved, c.Caller, c.note, stored), response}, nil
}

func renderApproved(x approved, existed bool) *pb.ApproveResponse {
	return &pb.ApproveResponse{Approval: renderApproval(&x.Request), Response: x.response, Existed: existed}
}

func (s *Approvals) Reject(ctx context.Context, r *pb.RejectRequest) (*pb.RejectResponse, error) {
	c := callOf(ctx)
	var d decoder
	cmd := &approval.RejectCommand{Caller: c.caller(), ID: r.GetApprovalId(), Note: d.name("note", r.GetNote())}
	if err := d.err(); err != nil {
		return nil, err
	}
	a, packed, w, err := s.find(ctx, cmd.ID)
	if err == nil && packed != nil && a.Principal != c.identity.Principal {
		err = w.permitDecision(c, &a)
	}
	if err != nil {
		return nil, err
	}
	cmd.Unseen = packed == nil
	res, err := submit(ctx, s.Mutations, rejectOperation, newMutation(flow.Approval(cmd), 1, renderRejected), r)
	return res.reply(ctx, err)
}

var rejectOperation = operation[*pb.RejectRequest, *pb.RejectResponse]{name: "approval.reject"}

func renderRejected(x approval.Request, existed bool) *pb.RejectResponse {
	return &pb.RejectResponse{Approval: renderApproval(&x), Existed: existed}
}

// GetApproval shows what is requested to the requester, and to callers that could approve it.
func (s *Approvals) GetApproval(ctx context.Context, r *pb.GetApprovalRequest) (*pb.GetApprovalResponse, error) {
	c := callOf(ctx)
	a, packed, w, err := s.find(ctx, r.GetApprovalId())
	if err != nil {
		return nil, err
	}
	if packed == nil {
		return nil, a.Key.NotFound()
	}
	res := &pb.GetApprovalResponse{Approval: renderApproval(&a.Request)}
	if a.Principal != c.identity.Principal && w.permitAll(c) != nil {
		return res, nil
	}
	if res.Request = packed; a.Response != nil {
		res.Response, err = unpack(a.Response)
	}
	return res, err
}

func (s *Approvals) ListApprovals(ctx context.Context, r *pb.ListApprovalsRequest) (*pb.ListApprovalsResponse, error) {
	list, next, err := s.Reader.Requests(ctx, callOf(ctx).identity.Tenant, approvalStateNames[r.GetState()],
		int(r.GetPageSize()), r.GetPageToken())
	return &pb.ListApprovalsResponse{Approvals: eachOf(list, renderApproval), NextPageToken: next}, err
}

var approvalStates = map[approval.State]pb.ApprovalState{
	approval.Open:     pb.ApprovalState_APPROVAL_STATE_OPEN,
	approval.Approved: pb.ApprovalState_APPROVAL_STATE_APPROVED,
	approval.Rejected: pb.ApprovalState_APPROVAL_STATE_REJECTED,
	approval.Expired:  pb.ApprovalState_APPROVAL_STATE_EXPIRED,
}

var approvalStateNames = inverse(approvalStates)

func renderApproval(a *approval.Request) *pb.Approval {
	return &pb.Approval{Id: a.ID, State: approvalStates[a.State], Operation: a.Operation, RequestedBy: a.Principal,
		Reason: a.Reason, CreateTime: timestamp(a.CreatedAt), ExpireTime: timestamp(a.ExpiresAt),
		DecidedBy: a.DecidedBy, DecideTime: timestamp(a.DecidedAt), Note: a.Note, RequestId: a.RequestID}
}
