package rpc

import (
	"context"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/token"
)

// TokenHeader carries the submit token that a changing call spends; NextTokenHeader is the answer's, and
// carries the one that follows.
const (
	TokenHeader     = "Submit-Token"
	NextTokenHeader = "Submit-Token-Next"
)

// IssueTokens issues submit tokens. Its answer is never recorded, so it cannot stand in an Execute either.
func (s *Idempotency) IssueTokens(ctx context.Context,
	r *idempotencyv1.IssueTokensRequest) (*idempotencyv1.IssueTokensResponse, error) {
	c := callOf(ctx)
	if err := c.recordsNothing(); err != nil {
		return nil, err
	}
	c.secret = true
	return run(ctx, s.Mutations, issueTokensCall, r)
}

var issueTokensCall = operation[*idempotencyv1.IssueTokensRequest,
	*idempotencyv1.IssueTokensResponse]{name: "idempotency.issue_tokens",
	read: func(c *call, d *decoder, r *idempotencyv1.IssueTokensRequest) mutation[*idempotencyv1.IssueTokensResponse] {
		cmd := &token.IssueCommand{Caller: c.caller(), Tokens: make([]string, max(1, r.GetCount())),
			Subject: d.label("subject", r.GetSubject()),
			Purpose: d.label("purpose", r.GetPurpose()), Life: token.DefaultLife,
			SurvivesRefusal: r.GetSurvivesRefusal()}
		if r.GetLife() != nil {
			cmd.Life = r.GetLife().AsDuration().Truncate(time.Millisecond)
		}
		for i := range cmd.Tokens {
			cmd.Tokens[i] = token.New()
		}
		return mutation[*idempotencyv1.IssueTokensResponse]{command: flow.Token(cmd), rows: len(cmd.Tokens),
			render: func(answer any, _ bool) (*idempotencyv1.IssueTokensResponse, error) {
				return &idempotencyv1.IssueTokensResponse{Tokens: cmd.Tokens,
					ExpireTime: timestamppb.New(answer.(token.Issued).ExpiresAt)}, nil
			}}
	}}

// SpendToken spends a submit token.
func (s *Idempotency) SpendToken(ctx context.Context,
	r *idempotencyv1.SpendTokenRequest) (*idempotencyv1.SpendTokenResponse, error) {
	return run(ctx, s.Mutations, spendTokenCall, r)
}

var spendTokenCall = register(spendTokenOperation,
	func(c *call, d *decoder, r *idempotencyv1.SpendTokenRequest) mutation[*idempotencyv1.SpendTokenResponse] {
		cmd := &token.SpendCommand{Spend: token.Spend{Caller: c.caller(), Token: r.GetToken(),
			Subject: d.label("subject", r.GetSubject()),
			Purpose: d.label("purpose", r.GetPurpose()), Operation: spendTokenOperation},
			Result: d.label("result", r.GetResult())}
		return mutation[*idempotencyv1.SpendTokenResponse]{command: flow.Token(cmd), earnest: true,
			render: func(answer any, _ bool) (*idempotencyv1.SpendTokenResponse, error) {
				return &idempotencyv1.SpendTokenResponse{SpendTime: timestamppb.New(answer.(token.Used).SpentAt)}, nil
			}}
	})

const spendTokenOperation = "idempotency.spend_token"

// label reads a name that people see, which is free of control characters.
func (d *decoder) label(path, s string) string {
	if problem := badLabel(s); problem != "" {
		d.bad(path, problem)
	}
	return s
}

func badLabel(s string) (problem string) {
	if len(s) > 255 {
		return "must be at most 255 bytes"
	}
	for _, r := range s {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return "must not contain control characters"
		}
	}
	return ""
}

// spend reads the header of a call that is to spend a submit token, such as
//
//	Submit-Token: st_0123456789abcdefghjkmnpqrstvwxyz; subject="user:1001"; purpose="order"; next
func (c *call) spend(spec connect.Spec, values []string) error {
	bad := func(problem string) error {
		return fault.FieldInvalid.New("%s: %s", TokenHeader, problem).WithField(TokenHeader, problem)
	}
	if spec.IdempotencyLevel == connect.IdempotencyNoSideEffects || spec.StreamType != connect.StreamTypeUnary {
		return bad("is for unary mutations only")
	}
	if len(values) > 1 {
		return bad("was sent more than once: send it once")
	}
	text := strings.Trim(values[0], " \t")
	if text == "" || text[0] == ';' {
		text = `""` + text // nothing where the token should be: said by the guard, after a look at the request key
	}
	f, err := parseField(text)
	if err != nil {
		return bad(err.Error())
	}
	s := token.Spend{Caller: c.caller()}
	ok := false
	if s.Token, ok = f.text(); !ok {
		return bad("must begin with a token")
	}
	for name, value := range f.parameters() {
		problem := ""
		switch name {
		case "subject":
			if s.Subject, ok = textOf(value); ok {
				problem = badLabel(s.Subject)
			}
		case "purpose":
			if s.Purpose, ok = textOf(value); ok {
				problem = badLabel(s.Purpose)
			}
		case "next":
			s.Next, ok = value.(bool)
		default:
			ok = false
		}
		if !ok {
			problem = "is unknown or has a wrong value: use subject and purpose with text, and next without a value"
		}
		if problem != "" {
			return bad("the parameter " + name + " " + problem)
		}
	}
	c.token = &flow.SubmitToken{Spend: s}
	c.conditions = append(c.conditions, c.token)
	return nil
}

// spendToken completes the token of the header, if there is one, for a change: made shows its answer as callers
// get it.
func (c *call) spendToken(operation string, dry bool,
	made func(answer any, existed bool) (proto.Message, error)) error {
	if c.token == nil {
		return nil
	}
	if dry {
		const problem = "must not be set in a call with a submit token: spending a token cannot be a dry run"
		return fault.FieldInvalid.New("dry_run: %s", problem).WithField("dry_run", problem)
	}
	c.token.Operation = operation
	c.token.Made = func(answer any, existed bool) map[string]string {
		m, err := made(answer, existed)
		if err != nil {
			return nil // the change itself will say so
		}
		return resourceOf(m.ProtoReflect())
	}
	return nil
}

// carry puts the next token into the answer to a submit that went well and asked for it. One that is
// replayed has it again, if it was issued then. A later try of a call whose token is spent leaves it as it is.
func (c *call) carry(ctx context.Context, s *Mutations, out commit.Outcome) error {
	if c.token == nil || !c.token.Next || len(c.conditions) == 0 {
		return nil
	}
	next := token.Next(c.token.Token)
	if out.Replayed {
		if known, err := s.Tokens.Known(ctx, c.identity.Tenant, next); err != nil || !known {
			return err
		}
	}
	c.next, c.secret = next, true
	return nil
}
