package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1/batchv1connect"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/lock"
)

// Batch serves BatchService.
type Batch struct{ *Mutations }

var _ batchv1connect.BatchServiceHandler = (*Batch)(nil)

// Execute runs operations, all or nothing.
func (s *Batch) Execute(ctx context.Context, r *batchv1.ExecuteRequest) (*batchv1.ExecuteResponse, error) {
	return run(ctx, s.Mutations, executeOperation, r)
}

var executeOperation = operation[*batchv1.ExecuteRequest, *batchv1.ExecuteResponse]{name: "batch.execute",
	read: readExecute}

func readExecute(c *call, d *decoder, r *batchv1.ExecuteRequest) mutation[*batchv1.ExecuteResponse] {
	e := &execute{call: c, lockKeys: r.GetLockKeys(), steps: make([]step, len(r.GetOperations()))}
	var inner []string
	rows, places := len(e.lockKeys), make(map[string]int, len(e.steps)) // a lock key takes room in the lock table
	for i, o := range r.GetOperations() {
		at := fmt.Sprintf("operations[%d].", i)
		s := &e.steps[i]
		s.place, s.name = i, o.GetName()
		if _, twice := places[s.name]; twice {
			d.bad(at+"name", "must be unique in the call")
		}
		s.read(c, d, at, o, func(name string) *step {
			if place, ok := places[name]; ok {
				return &e.steps[place]
			}
			return nil
		})
		if s.name != "" {
			places[s.name] = i
		}
		if r.GetDryRun() && s.change.earnest {
			d.bad("dry_run", fmt.Sprintf("operations[%d] does not support dry_run", i))
		}
		rows += max(1, s.change.rows)
		if !slices.Contains(inner, s.operation.name) {
			inner = append(inner, s.operation.name)
		}
	}
	return mutation[*batchv1.ExecuteResponse]{command: e, rows: rows, dry: r.GetDryRun(), inner: inner,
		spends: slices.Contains(inner, spendTokenOperation),
		render: func(answer any, _ bool) (*batchv1.ExecuteResponse, error) {
			return answer.(*batchv1.ExecuteResponse), nil
		}}
}

// execute is a command made of others.
type execute struct {
	call     *call
	lockKeys []string
	steps    []step
}

// step is one operation.
type step struct {
	place      int
	name       string
	operation  operation[proto.Message, proto.Message]
	request    proto.Message
	references []reference
	// change is what the request asks for; with references, of a sample, whose rows are those of the real
	// one: references never name rows that are not there already.
	change mutation[proto.Message]
	// more are real ones that found out, in an attempt, that they need more rows; last is what the operation was in the
	// attempt before, if there was one: what it named is likely to be needed again.
	more []flow.Command
	last flow.Command

	response proto.Message // of the attempt at hand
}

// read decodes an operation and says what is wrong with it.
func (s *step) read(c *call, d *decoder, at string, o *batchv1.Operation, earlier func(name string) *step) {
	var err error
	if s.request, err = o.GetRequest().UnmarshalNew(); err != nil {
		d.bad(at+"request", "is not of a type that this server knows")
		return
	}
	known := false
	if s.operation, known = operations[s.request.ProtoReflect().Descriptor().FullName()]; !known {
		d.bad(at+"request", "is not the request of a mutation that Execute supports")
		return
	}
	sample := s.request
	if len(o.GetReferences()) > 0 {
		sample = proto.Clone(s.request)
		for i, r := range o.GetReferences() {
			ref, problem := newReference(r, sample, earlier(r.GetOperation()))
			if problem != "" {
				d.bad(fmt.Sprintf("%sreferences[%d]", at, i), problem)
				return
			}
			s.references = append(s.references, ref)
		}
	}
	if s.change, err = s.decode(c, sample); err != nil {
		d.take(at+"request.", err)
		return
	}
	if flow.Stays(s.change.command) && len(s.references) > 0 {
		d.bad(at+"references", "must be empty: this operation takes effect even when others are refused")
	}
	if s.change.dry {
		d.bad(at+"request.dry_run", "must not be set on an operation: set dry_run of the Execute")
	}
}

// decode makes a change of a request.
func (s *step) decode(c *call, request proto.Message) (g mutation[proto.Message], err error) {
	if err := check(request); err != nil {
		return g, err
	}
	var d decoder
	g = s.operation.read(c, &d, request)
	return g, d.err()
}

// Need names what all operations need.
func (e *execute) Need(tx *flow.Tx) {
	for _, k := range e.lockKeys {
		tx.LockKeys().Want(lock.Key{Tenant: e.call.identity.Tenant, Name: k})
	}
	for i := range e.steps {
		s := &e.steps[i]
		s.response = nil
		s.change.command.Need(tx)
		for _, c := range s.more {
			c.Need(tx)
		}
		if s.last != nil {
			s.last.Need(tx)
		}
	}
}

// Apply runs them in order. Its answer is an ExecuteResponse.
func (e *execute) Apply(tx *flow.Tx) (any, error) {
	answer := &batchv1.ExecuteResponse{Results: make([]*batchv1.OperationResult, len(e.steps))}
	for i := range e.steps {
		s := &e.steps[i]
		existed, err := e.apply(tx, s)
		if err != nil {
			for _, guard := range e.steps {
				err = flow.Refuse(err, guard.change.command)
			}
			return nil, s.fails(err)
		}
		packed := new(anypb.Any)
		if err := anypb.MarshalFrom(packed, s.response, marshal); err != nil {
			return nil, err
		}
		answer.Results[i] = &batchv1.OperationResult{Name: s.name, Response: packed, Existed: existed}
	}
	return answer, nil
}

func (e *execute) apply(tx *flow.Tx, s *step) (existed bool, err error) {
	g := s.change
	if len(s.references) > 0 {
		request := proto.Clone(s.request)
		for _, r := range s.references {
			if err := r.fill(request); err != nil {
				return false, err
			}
		}
		if g, err = s.decode(e.call, request); err != nil {
			return false, err
		}
		s.last = g.command
		g.command.Need(tx) // of rows that are there
	}
	answer, err := g.command.Apply(tx)
	if errors.Is(err, commit.ErrMoreRows) && len(s.references) > 0 {
		s.more = append(s.more, g.command)
	}
	if err != nil {
		return false, err
	}
	if r, ok := answer.(commit.Repeat); ok {
		answer, existed = r.First, true
	}
	s.response, err = g.render(answer, existed)
	return existed, err
}

// fails says which operation an error is of.
func (s *step) fails(err error) error {
	f := fault.Of(err)
	if f == nil {
		return err
	}
	own := *f
	own.State = nil
	own.Message = fmt.Sprintf("operation %d: %s", s.place, f.Message)
	own.Fields = make([]fault.Field, len(f.Fields))
	for i, x := range f.Fields {
		own.Fields[i] = fault.Field{Path: fmt.Sprintf("operations[%d].request.%s", s.place, x.Path),
			Description: x.Description}
	}
	e := &own
	for k, v := range f.State {
		e = e.With(k, v)
	}
	e = e.With("operation", s.place)
	if s.name != "" {
		e = e.With("operation_name", s.name)
	}
	return e
}

// Count has the operations count what stays whatever becomes of the whole.
func (e *execute) Count(tx *flow.Tx) (counted bool) {
	for i := range e.steps {
		if c, ok := e.steps[i].change.command.(commit.Counted[*flow.Tx]); ok && c.Count(tx) {
			counted = true
		}
	}
	return counted
}

// Guard runs the parts of the operations that stay when the whole is refused, before any operation.
func (e *execute) Guard(tx *flow.Tx) error {
	for i := range e.steps {
		s := &e.steps[i]
		if c, ok := s.change.command.(commit.Guarded[*flow.Tx]); ok {
			if err := c.Guard(tx); err != nil {
				return s.fails(err)
			}
		}
	}
	return nil
}
