package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/lock"
)

// Batch serves BatchService.
type Batch struct{ *Mutations }

// Execute runs operations as one transaction, all or nothing.
func (s *Batch) Execute(ctx context.Context, r *batchv1.ExecuteRequest) (*batchv1.ExecuteResponse, error) {
	return run(ctx, s.Mutations, executeOperation, r)
}

const executeName = "batch.execute"

var executeOperation = operation[*batchv1.ExecuteRequest, *batchv1.ExecuteResponse]{name: executeName,
	read: readExecute}

func readExecute(c *call, d *decoder, r *batchv1.ExecuteRequest) mutation[*batchv1.ExecuteResponse] {
	if r.GetDryRun() {
		c = c.withoutPolicies()
	}
	c = c.spending(d, r)
	e := &execute{call: c, lockKeys: r.GetLockKeys(), steps: make([]step, len(r.GetOperations()))}
	var inner []string
	standsAlone := ""
	rows, indexes := len(e.lockKeys), make(map[string]int, len(e.steps)) // lock keys count like rows
	for i, o := range r.GetOperations() {
		at := fmt.Sprintf("operations[%d].", i)
		s := &e.steps[i]
		s.index, s.name = i, o.GetName()
		if _, twice := indexes[s.name]; twice {
			d.bad(at+"name", "must be unique in the call")
		}
		s.read(c, d, at, o, func(name string) *step {
			if index, ok := indexes[name]; ok {
				return &e.steps[index]
			}
			return nil
		})
		if s.name != "" {
			indexes[s.name] = i
		}
		if r.GetDryRun() && s.mutation.noDryRun {
			d.bad("dry_run", fmt.Sprintf("operations[%d] does not support dry_run", i))
		}
		if f := s.mutation.standsAlone; f != "" {
			standsAlone = at + "request." + f
		}
		rows += max(1, s.mutation.rows)
		for _, name := range append(s.mutation.inner, s.operation.name) {
			if !slices.Contains(inner, name) {
				inner = append(inner, name)
			}
		}
	}
	m := newMutation(e, rows, func(answer *batchv1.ExecuteResponse, _ bool) *batchv1.ExecuteResponse { return answer })
	m.standsAlone = standsAlone
	m.inner, m.spends = inner, slices.Contains(inner, spendTokenName)
	return m
}

// spending returns the call with the token that an operation of an Execute spends. A token can be spent once.
func (c *call) spending(d *decoder, r *batchv1.ExecuteRequest) *call {
	own := *c
	var seen []string
	if c.token != nil {
		seen = append(seen, c.token.Token)
	}
	for i, o := range r.GetOperations() {
		s := new(idempotencyv1.SpendTokenRequest)
		if !o.GetRequest().MessageIs(s) || o.GetRequest().UnmarshalTo(s) != nil || s.GetToken() == "" {
			continue
		}
		if slices.Contains(seen, s.GetToken()) {
			d.bad(fmt.Sprintf("operations[%d].request.token", i), "is spent by the same call already")
		}
		seen = append(seen, s.GetToken())
		own.spent = cmp.Or(own.spent, s.GetToken())
	}
	return &own
}

// execute is a command composed of the commands of its steps.
type execute struct {
	call     *call
	lockKeys []string
	steps    []step
}

// step is one operation.
type step struct {
	index      int
	name       string
	call       call
	operation  operation[proto.Message, proto.Message]
	request    proto.Message
	references []reference
	// mutation is the decoded request. With references it is decoded from a sample, which needs the same rows as the
	// real request, except those that references name.
	mutation mutation[proto.Message]
	// last was decoded in the previous attempt from filled, the request with its references filled in. The next attempt
	// first names the rows of last. names are the values of references that name rows. lacks: last failed with
	// ErrMoreRows. lacked: commands of earlier attempts, with other requests, that failed so too.
	last   mutation[proto.Message]
	filled proto.Message
	names  []string
	lacks  bool
	lacked []flow.Command

	response proto.Message // of the current attempt; nil: err
	err      error
}

// read decodes an operation.
func (s *step) read(c *call, d *decoder, at string, o *batchv1.Operation, earlier func(name string) *step) {
	var err error
	if o.GetRequest().GetTypeUrl() == "" {
		d.bad(at+"request", typeMissing)
		return
	}
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
				part, problem, _ := strings.Cut(problem, ": ")
				d.bad(fmt.Sprintf("%sreferences[%d].%s", at, i, part), problem)
				return
			}
			s.references = append(s.references, ref)
		}
	}
	s.call = *c
	s.call.numbers = new(numbers)
	if s.mutation, err = s.decode(sample, len(s.references) > 0); err != nil {
		d.addProblems(at+"request.", err)
		return
	}
	if err = c.requireRoleOf(s.request); err == nil && len(s.references) == 0 {
		err = c.permit(s.request) // with references: once they have filled it in
	}
	if err != nil {
		d.deny(s.wrapFault(err))
		return
	}
	if flow.SurvivesRefusal(s.mutation.command) && len(s.references) > 0 {
		d.bad(at+"references", "must be empty: this operation takes effect even when others are refused")
	}
	if s.mutation.dry {
		d.bad(at+"request.dry_run", "must not be set on an operation: set dry_run of the Execute")
	}
}

// decode validates a request and reads its mutation. sample: references will fill in some of its fields.
func (s *step) decode(request proto.Message, sample bool) (g mutation[proto.Message], err error) {
	if err := check(request); err != nil {
		return g, err
	}
	s.call.sample, s.call.numbers.used = sample, 0
	return s.operation.decode(&s.call, request)
}

// Need names the rows of all operations.
func (e *execute) Need(tx *flow.Tx) {
	for _, k := range e.lockKeys {
		tx.LockKeys().Want(lock.Key{Tenant: e.call.identity.Tenant, Name: k})
	}
	for i := range e.steps {
		s := &e.steps[i]
		s.response = nil
		s.mutation.command.Need(tx)
		for _, c := range s.lacked {
			c.Need(tx)
		}
		if s.filled != nil {
			s.last.command.Need(tx)
		}
	}
}

// Apply runs the operations in order. Its answer is an ExecuteResponse.
func (e *execute) Apply(tx *flow.Tx) (any, error) {
	answer := &batchv1.ExecuteResponse{Results: make([]*batchv1.OperationResult, len(e.steps))}
	var rows lacking
	for i := range e.steps {
		s := &e.steps[i]
		var existed bool
		err := rows.try(func() (err error) { existed, err = e.apply(tx, s); return err })
		if s.err = err; rows.note(err) {
			continue
		}
		if err != nil {
			for _, x := range e.steps {
				err = flow.NoteRefusal(err, x.mutation.command)
			}
			return nil, s.wrapFault(err)
		}
		packed := new(anypb.Any)
		if err := anypb.MarshalFrom(packed, s.response, marshal); err != nil {
			return nil, err
		}
		answer.Results[i] = &batchv1.OperationResult{Name: s.name, Response: packed, Existed: existed}
	}
	if rows.err != nil {
		return nil, rows.err
	}
	return answer, nil
}

// lacking notes that one of several commands lacks rows, or has to wait for a later batch. The attempt then fails, but
// the commands after it still run: the next attempt has the rows that all of them lack.
type lacking struct{ err error } // commit.ErrMoreRows or commit.ErrLater

// try runs a command. If the attempt has failed already, it ignores a panic, such as for too many ids: with the effects
// of the commands that lack rows, the command may do less.
func (l *lacking) try(run func() error) (err error) {
	if l.err != nil {
		defer func() {
			if recover() != nil {
				err = l.err
			}
		}()
	}
	return run()
}

// note records the error of a command, and reports whether this command, or one before it, lacks rows.
func (l *lacking) note(err error) bool {
	if errors.Is(err, commit.ErrMoreRows) || errors.Is(err, commit.ErrLater) && l.err == nil {
		l.err = err
	}
	return l.err != nil
}

func (e *execute) apply(tx *flow.Tx, s *step) (existed bool, err error) {
	g, request := s.mutation, s.request
	if len(s.references) > 0 {
		if g, err = e.resolve(tx, s); err != nil {
			return false, err
		}
		request = s.filled
	}
	if err = e.call.requireApproval(request); err != nil {
		return false, err
	}
	answer, err := g.command.Apply(tx)
	s.lacks = errors.Is(err, commit.ErrMoreRows)
	if err != nil {
		return false, err
	}
	if r, ok := answer.(commit.Repeat); ok {
		answer, existed = r.First, true
	}
	s.response = g.render(answer, existed)
	return existed, nil
}

// resolve returns the operation with its references filled in. If the request is the same as in the last attempt, it
// returns the operation of that attempt, whose command keeps what it found then.
func (e *execute) resolve(tx *flow.Tx, s *step) (g mutation[proto.Message], err error) {
	request := proto.Clone(s.request)
	var names []string
	for _, r := range s.references {
		if r.from.response == nil {
			return g, r.from.err // that operation lacks rows, or has to wait
		}
		name, err := r.fill(request)
		if err != nil {
			return g, err
		}
		if r.names {
			names = append(names, name)
		}
	}
	if s.filled != nil && proto.Equal(s.filled, request) {
		return s.last, nil
	}
	if g, err = s.decode(request, false); err != nil {
		return g, err
	}
	if err = e.call.permit(request); err != nil {
		return g, err
	}
	if s.lacks {
		s.lacked = append(s.lacked, s.last.command)
	}
	s.last, s.filled, s.lacks = g, request, false
	if !slices.Equal(names, s.names) {
		s.names = names
		return g, commit.ErrMoreRows
	}
	g.command.Need(tx) // all these rows are loaded
	return g, nil
}

// wrapFault adds the operation to a fault: to its message, its fields and its state.
func (s *step) wrapFault(err error) error {
	f := fault.Of(err)
	if f == nil {
		return err
	}
	own := *f
	own.Metadata = maps.Clone(f.Metadata)
	own.Message = fmt.Sprintf("operation %d: %s", s.index, f.Message)
	own.Fields = each(f.Fields, func(x fault.Field) fault.Field {
		return fault.Field{Path: fmt.Sprintf("operations[%d].request.%s", s.index, x.Path), Description: x.Description}
	})
	own.With("operation", s.index)
	if s.name != "" {
		own.With("operation_name", s.name)
	}
	return &own
}

// Count applies the effects of all operations that survive a failure of the Execute.
func (e *execute) Count(tx *flow.Tx) (counted bool) {
	for i := range e.steps {
		if c, ok := e.steps[i].mutation.command.(commit.Counted[*flow.Tx]); ok && c.Count(tx) {
			counted = true
		}
	}
	return counted
}

// Guard runs, before any operation, the parts that survive a refusal of the Execute.
func (e *execute) Guard(tx *flow.Tx) error {
	for i := range e.steps {
		s := &e.steps[i]
		if c, ok := s.mutation.command.(commit.Guarded[*flow.Tx]); ok {
			if err := c.Guard(tx); err != nil {
				return s.wrapFault(err)
			}
		}
	}
	return nil
}
