package rpc

import (
	"context"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/token"
)

// IssueTokens issues submit tokens. An Execute does not support it, because its response must not be recorded.
func (s *Idempotency) IssueTokens(ctx context.Context, r *pb.IssueTokensRequest) (*pb.IssueTokensResponse, error) {
	if err := callOf(ctx).rejectKeyAndGuards(); err != nil {
		return nil, err
	}
	noStore(ctx)
	return run(ctx, s.Mutations, issueTokensOperation, r)
}

var issueTokensOperation = operation[*pb.IssueTokensRequest,
	*pb.IssueTokensResponse]{name: "idempotency.issue_tokens", keyless: true,
	read: func(c *call, d *decoder, r *pb.IssueTokensRequest) mutation[*pb.IssueTokensResponse] {
		cmd := &token.IssueCommand{Caller: c.caller(), Tokens: make([]string, max(1, r.GetCount())),
			Subject: d.label("subject", r.GetSubject()), Purpose: d.label("purpose", r.GetPurpose()),
			Life: durationOr(r.GetLife(), token.DefaultLife), SurvivesRefusal: r.GetSurvivesRefusal()}
		for i := range cmd.Tokens {
			cmd.Tokens[i] = token.New()
		}
		return newMutation(flow.Token(cmd), len(cmd.Tokens), func(issued token.Issued, _ bool) *pb.IssueTokensResponse {
			return &pb.IssueTokensResponse{Tokens: cmd.Tokens, ExpireTime: timestamp(issued.ExpiresAt)}
		})
	}}

func (s *Idempotency) SpendToken(ctx context.Context, r *pb.SpendTokenRequest) (*pb.SpendTokenResponse, error) {
	return run(ctx, s.Mutations, spendTokenOperation, r)
}

var spendTokenOperation = register(spendTokenName,
	func(c *call, d *decoder, r *pb.SpendTokenRequest) mutation[*pb.SpendTokenResponse] {
		cmd := &token.SpendCommand{Spend: token.Spend{Caller: c.caller(), Token: r.GetToken(),
			Subject: d.label("subject", r.GetSubject()), Purpose: d.label("purpose", r.GetPurpose()),
			Operation: spendTokenName}, Result: d.label("result", r.GetResult())}
		m := newMutation(flow.Token(cmd), 1, func(used token.Used, _ bool) *pb.SpendTokenResponse {
			return &pb.SpendTokenResponse{SpendTime: timestamp(used.SpentAt)}
		})
		m.noDryRun = true
		return m
	})

const spendTokenName = "idempotency.spend_token"

// label decodes a name that people see: at most 255 bytes, without control characters.
func (d *decoder) label(path, s string) string {
	if problem := badLabel(s); problem != "" {
		d.bad(path, problem)
		return s
	}
	return d.name(path, s)
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
